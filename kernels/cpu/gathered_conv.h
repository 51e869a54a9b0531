// Convolutions in float32, and gradients of bfloat16 convolutions' weights, as matrix products of gathered rows: what a
// pixel of the result is made of, its inputs under all taps of the kernel, is a row, and rows are gathered a few at a time
// into memory that stays in the second cache (Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014,
// section 3, "lowering" without the lowered matrix). Activations stay channels-last and weights in PyTorch's layout.
//
// A pixel's result has the same bits in any batch and on any number of threads.
#pragma once

#include <cstddef>

#include "kernels/backend.h"
#include "kernels/operation_checks.h"

namespace motley::gathered {

// Whether such a convolution is computed this way: its layer and type decide, not the batch.
bool applies(const ConvolutionSizes& sizes);
// Likewise of the gradient of its weights. In bfloat16 oneDNN's threads wait for each other in a loop there unless the kernel
// is 1 x 1, which takes seconds where processors are shared.
bool applies_to_weights(const ConvolutionSizes& sizes);

// Bytes of working memory of the operations below.
std::size_t forward_bytes(int threads, const ConvolutionSizes& sizes);
std::size_t backward_data_bytes(int threads, const ConvolutionSizes& sizes);
std::size_t backward_weights_bytes(const ConvolutionSizes& sizes);

// As Backend::conv2d_forward and so on, of one sample at least, all float32 but x and dy of backward_weights, without an activation.
void forward(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& weight,
             const ConstView& bias, const View& y, std::byte* work);
void backward_data(int threads, const ConvolutionSizes& sizes, const ConstView& dy, const ConstView& weight,
                   const View& dx, std::byte* work);
void backward_weights(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& dy,
                      const View& dweight, const View& dbias, bool accumulate, std::byte* work);

}  // namespace motley::gathered

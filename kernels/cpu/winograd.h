// Convolutions of 3 x 3 kernels without stride by Winograd's F(4 x 4, 3 x 3), with a quarter of the multiplications of the
// definition. Activations stay channels-last and may be bfloat16; everything between is float32.
//
// The image is covered by tiles of 4 x 4 outputs, which 6 x 6 inputs make. A transform gives 36 numbers per tile and
// channel; for each of the 36 the tiles of a chunk make a matrix product with that of the kernels, over channels
// (forwards, and with transposed and mirrored kernels for the gradient of the input) or over tiles (for that of the
// kernels). Chunks do not depend on the number of threads, and a tile's result not on the chunk that it is in.
//
// Rounding is about five times that of the definition's sums. An infinite input makes NaN of the tile that it is in.
#pragma once

#include <cstddef>

#include "kernels/backend.h"
#include "kernels/operation_checks.h"

namespace motley::winograd {

// Whether such a convolution is computed this way: its layer decides, not the batch.
bool applies(const ConvolutionSizes& sizes);

// Bytes of working memory of the operations below.
std::size_t forward_bytes(int threads, const ConvolutionSizes& sizes);
std::size_t backward_data_bytes(int threads, const ConvolutionSizes& sizes);
std::size_t backward_weights_bytes(int threads, const ConvolutionSizes& sizes);

// As Backend::conv2d_forward and so on, of one sample at least. `weight` is float32 or bfloat16.
void forward(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& weight,
             const ConstView& bias, Activation activation, const View& y, std::byte* work);
void backward_data(int threads, const ConvolutionSizes& sizes, const ConstView& dy, const ConstView& weight,
                   const View& dx, std::byte* work);
void backward_weights(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& dy,
                      const View& dweight, const View& dbias, bool accumulate, std::byte* work);

}  // namespace motley::winograd

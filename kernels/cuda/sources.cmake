# The CUDA backend: kernels (.cu) are compiled by nvcc for GPUs and by the C++ compiler for the simulated device; the
# rest calls the libraries and is the same for both.
set(MOTLEY_CUDA_KERNELS
  activation.cu attention.cu avg_pool2d.cu batch_norm.cu batch_norm_statistics.cu batch_norm_sums.cu cast.cu channels.cu
  column_sums.cu conv2d.cu device_code.cu dropout.cu embedding.cu layer_norm.cu layout.cu linear.cu max_pool2d.cu
  normalize_images.cu optimizers/adadelta.cu optimizers/adam.cu optimizers/lamb.cu optimizers/sgd.cu reductions.cu
  softmax_nll.cu)
set(MOTLEY_CUDA_HOST
  convolutions.cc cuda.cc cuda_backend.cc gpu_driver.cc graphs.cc matrix_products.cc)

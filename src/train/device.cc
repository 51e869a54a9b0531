#include "train/device.h"

#include "comm/agree.h"
#include "comm/mpi.h"

namespace motley::train {

std::unique_ptr<Backend> make_backend(const std::string& device, int threads,
                                      const comm::Communicator& world) {
  std::unique_ptr<Backend> backend;
  const int count = threads > 0 ? threads : comm::threads_per_rank(comm::processor_share(world));
  comm::agree(world, "opening the device", [&] {
    if (device == "cuda") {
      fail(ExitCode::device, "--device cuda: this build of motley has no CUDA backend; use --device cpu");
    }
    backend = make_cpu_backend(count);
  });
  return backend;
}

}  // namespace motley::train

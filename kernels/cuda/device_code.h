// Does this program hold code for the architecture of a device?
#pragma once

namespace motley::cuda {

// Error(device) that names the device's architecture and those that the program was built for when it has no
// code that the device could run.
void require_device_code(int device);

}  // namespace motley::cuda

// motley train --help-archs: the networks that --arch picks from.
#pragma once

#include <string>
#include <vector>

namespace motley::cli {

bool asks_for_archs(const std::vector<std::string>& arguments);
// The table, with parameters and multiply-adds for the images of --task or --data, and --classes, if they are given. Needs
// no MPI. Error(usage) for other options.
std::string archs_text(const std::vector<std::string>& arguments);

}  // namespace motley::cli

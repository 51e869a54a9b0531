#include "cli/command.h"

int main(int argc, char** argv) {
  return motley::cli::main(argc, argv);
}

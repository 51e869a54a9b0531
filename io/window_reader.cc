#include "io/window_reader.h"

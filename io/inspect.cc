#include "io/inspect.h"

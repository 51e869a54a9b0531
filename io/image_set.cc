#include "io/image_set.h"

#include "io/idx.h"

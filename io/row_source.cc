#include "io/row_source.h"

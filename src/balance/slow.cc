#include "balance/slow.h"

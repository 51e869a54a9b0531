#include "balance/shares.h"

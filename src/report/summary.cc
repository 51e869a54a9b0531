#include "report/summary.h"

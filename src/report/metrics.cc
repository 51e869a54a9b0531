#include "report/metrics.h"

#include "report/progress.h"

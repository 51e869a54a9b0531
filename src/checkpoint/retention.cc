#include "checkpoint/retention.h"

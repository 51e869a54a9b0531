#include "comm/agree.h"

#include "checkpoint/directory.h"

#include "comm/communicator.h"

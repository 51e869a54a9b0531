#include "core/json.h"

namespace motley {

Json parse_json(std::string_view text, const std::string& where, ExitCode code) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& problem) {
    fail(code, "{} is not valid JSON (at byte {})", where, problem.byte);
  } catch (const Json::out_of_range& problem) {
    fail(code, "{} has a number that is too large for any use: {}", where, problem.what());
  }
}

}  // namespace motley

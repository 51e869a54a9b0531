// JSON by nlohmann-json, with errors that name the file and the key.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace motley {

using Json = nlohmann::json;

// Parses `text`; `where` names its origin in the error.
Json parse_json(std::string_view text, const std::string& where, ExitCode code);

// The value of `key` as T; a missing key or another type is an error that names `where` and the key.
template <class T>
T json_get(const Json& object, const char* key, const std::string& where, ExitCode code) {
  if (!object.is_object() || !object.contains(key)) fail(code, "{} has no \"{}\"", where, key);
  try {
    return object.at(key).get<T>();
  } catch (const Json::exception&) {
    fail(code, "{}: \"{}\" is {}, which is not what belongs there", where, key, object.at(key).dump());
  }
}

}  // namespace motley

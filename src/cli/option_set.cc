#include "cli/option_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "core/nearest_word.h"

namespace po = boost::program_options;

namespace motley::cli {
namespace {

template <class T>
T parse_number(const std::string& name, const std::string& text, const char* expected) {
  T value{};
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end)
    fail(ExitCode::usage, "--{} is \"{}\"; expected {}", name, text, expected);
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) fail(ExitCode::usage, "--{} is \"{}\"; expected a finite number", name, text);
  }
  return value;
}

std::vector<std::string> split_list(const std::string& text) {
  std::string bare;
  for (const char c : text) {
    if (c != '(' && c != ')' && c != '[' && c != ']' && c != ' ') bare += c;
  }
  std::vector<std::string> parts;
  std::stringstream stream(bare);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  if (!bare.empty() && bare.back() == ',' && parts.size() > 1) parts.emplace_back();
  return parts;
}

template <class T>
std::string join(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  return text;
}

// HetSeq writes some options with underscores: --num_file is --num-file.
std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::vector<std::string> with_dashes(const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  for (const std::string& argument : arguments) {
    if (argument.rfind("--", 0) != 0) {
      result.push_back(argument);
      continue;
    }
    const std::size_t equals = std::min(argument.find('='), argument.size());
    result.push_back(with_dashes(argument.substr(0, equals)) + argument.substr(equals));
  }
  return result;
}

}  // namespace

void OptionSet::group(const std::string& title) {
  group_ = title;
}

void OptionSet::declare(const std::string& name, const std::string& help, bool is_switch, Setter set,
                        std::function<std::string()> text) {
  options_.push_back({name, help, group_, text(), is_switch, false, std::move(set), std::move(text), false});
}

void OptionSet::add(const std::string& name, std::string* field, const std::string& help) {
  declare(
      name, help, false, [field](const std::string& text) { *field = text; }, [field] { return *field; });
}

void OptionSet::add(const std::string& name, std::int64_t* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) { *field = parse_number<std::int64_t>(name, text, "a whole number"); },
      [field] { return std::to_string(*field); });
}

void OptionSet::add(const std::string& name, int* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) { *field = parse_number<int>(name, text, "a whole number"); },
      [field] { return std::to_string(*field); });
}

void OptionSet::add(const std::string& name, std::uint64_t* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) {
        *field = parse_number<std::uint64_t>(name, text, "a whole number of at least 0");
      },
      [field] { return std::to_string(*field); });
}

void OptionSet::add(const std::string& name, double* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) { *field = parse_number<double>(name, text, "a number"); },
      [field] { return fmt::format("{}", *field); });
}

void OptionSet::add(const std::string& name, std::vector<double>* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) {
        field->clear();
        for (const std::string& part : split_list(text)) {
          field->push_back(parse_number<double>(name, part, "numbers with commas between them"));
        }
      },
      [field] { return join(*field); });
}

void OptionSet::add(const std::string& name, std::vector<std::int64_t>* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) {
        field->clear();
        for (const std::string& part : split_list(text)) {
          field->push_back(parse_number<std::int64_t>(name, part, "whole numbers with commas between them"));
        }
      },
      [field] { return join(*field); });
}

void OptionSet::add(const std::string& name, std::vector<std::string>* field, const std::string& help) {
  declare(
      name, help, false, [field](const std::string& text) { *field = split_list(text); },
      [field] { return join(*field); });
}

void OptionSet::add_paths(const std::string& name, std::vector<std::string>* field, const std::string& help) {
  declare(
      name, help, false,
      [=](const std::string& text) {
        field->clear();
        std::stringstream stream(text);
        for (std::string path; std::getline(stream, path, ',');) {
          if (path.empty()) fail(ExitCode::usage, "--{} is \"{}\", which names an empty path", name, text);
          field->push_back(path);
        }
      },
      [field] { return join(*field); });
  options_.back().is_list = true;
}

void OptionSet::add_switch(const std::string& name, bool* field, const std::string& help) {
  declare(
      name, help, true,
      [=](const std::string& text) {
        if (text.empty() || text == "true" || text == "1" || text == "yes" || text == "on") {
          *field = true;
        } else if (text == "false" || text == "0" || text == "no" || text == "off") {
          *field = false;
        } else {
          fail(ExitCode::usage, "--{} is \"{}\"; expected true or false", name, text);
        }
      },
      [field] { return *field ? "true" : "false"; });
}

void OptionSet::alias(const std::string& other, const std::string& name) {
  MOTLEY_CHECK(has(name));
  aliases_[other] = name;
}

void OptionSet::ignore(const std::string& name, bool is_switch, const std::string& reason,
                       const std::string& expected) {
  ignored_.push_back({name, reason, expected, is_switch, false});
}

void OptionSet::refuse(const std::string& name, const std::string& sentence) {
  refused_[name] = sentence;
}

void OptionSet::positional(const std::string& name, std::string* field, const std::string& help) {
  positional_name_ = name;
  positional_ = field;
  positional_help_ = help;
}

po::options_description OptionSet::description() const {
  po::options_description all;
  for (const Option& option : options_) {
    if (option.is_switch) {
      all.add_options()(option.name.c_str(), option.help.c_str());
    } else if (option.is_list) {
      all.add_options()(option.name.c_str(), po::value<std::vector<std::string>>()->multitoken(),
                        option.help.c_str());
    } else {
      all.add_options()(option.name.c_str(), po::value<std::string>(), option.help.c_str());
    }
  }
  for (const auto& [other, name] : aliases_) all.add_options()(other.c_str(), po::value<std::string>(), "");
  for (const Ignored& option : ignored_) {
    if (option.is_switch) {
      all.add_options()(option.name.c_str(), "");
    } else {
      all.add_options()(option.name.c_str(), po::value<std::string>(), "");
    }
  }
  all.add_options()("config", po::value<std::string>(), "");
  return all;
}

void OptionSet::fail_unknown(const std::string& name, const std::string& where) const {
  const auto refused = refused_.find(name);
  if (refused != refused_.end()) fail(ExitCode::usage, "{}{}", where, refused->second);
  std::vector<std::string> names{"config", "help"};
  for (const Option& option : options_) names.push_back(option.name);
  const std::string nearest = nearest_word(name, names);
  fail(ExitCode::usage, "{}there is no option --{}{}; motley {} --help lists them", where, name,
       nearest.empty() ? "" : fmt::format(", did you mean --{}?", nearest), command_);
}

bool OptionSet::note_ignored(const std::string& name, const std::string& text, const std::string& where) {
  for (Ignored& option : ignored_) {
    if (option.name != name) continue;
    if (!option.expected.empty() && text != option.expected) {
      fail(ExitCode::usage, "{}--{} is \"{}\"; expected {}: {}", where, name, text, option.expected,
           option.reason);
    }
    option.given = true;
    return true;
  }
  return false;
}

void OptionSet::apply(const po::parsed_options& parsed, const std::string& where, bool override_given) {
  std::vector<std::string> seen;
  std::map<std::string, std::string> lists;  // what was given so far
  std::vector<std::string> given_before;
  for (const Option& option : options_) {
    if (option.given) given_before.push_back(option.name);
  }
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const po::option& found : parsed.options) {
    std::string text = join(found.value);
    if (found.position_key >= 0) {
      if (positional_ == nullptr || !positional_->empty()) {
        fail(ExitCode::usage, "\"{}\" was not expected; motley {} --help says what is", text, command_);
      }
      *positional_ = text;
      continue;
    }
    std::string name = with_dashes(found.string_key);
    if (const auto alias = aliases_.find(name); alias != aliases_.end()) name = alias->second;
    if (note_ignored(name, text, where)) continue;
    if (name == "config") {
      if (!override_given)
        fail(ExitCode::usage, "{}a file of options cannot name another by --config", where);
      if (!config_.empty()) fail(ExitCode::usage, "--config was given twice");
      config_ = text;
      continue;
    }
    const auto option =
        std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
    if (option == options_.end()) fail_unknown(name, where);
    if (option->is_list) {
      std::string& all = lists[name];
      text = all += (all.empty() ? "" : ",") + text;
    } else if (contains(seen, name)) {
      fail(ExitCode::usage, "{}--{} was given twice", where, name);
    }
    seen.push_back(name);
    if (contains(given_before, name) && !override_given) continue;  // the command line wins over the file
    try {
      option->set(text);
    } catch (const Error& error) {
      throw Error(error.code(), where + error.what());
    }
    option->given = true;
  }
}

// Takes --switch=no, --no-switch and the like out of the words: the parser knows switches without a value, or options that take the word
// behind them for it.
std::vector<po::option> OptionSet::take_switch_values(std::vector<std::string>& words) const {
  std::vector<po::option> taken;
  std::erase_if(words, [&](const std::string& word) {
    const std::size_t equals = word.find('=');
    const Option* const negated = word.starts_with("--no-") ? find(word.substr(5)) : nullptr;
    if (negated != nullptr && negated->is_switch) {
      taken.emplace_back(negated->name, std::vector<std::string>{"no"});
      return true;
    }
    if (!word.starts_with("--") || equals == std::string::npos) return false;
    const Option* const option = find(word.substr(2, equals - 2));
    if (option == nullptr || !option->is_switch) return false;
    taken.emplace_back(option->name, std::vector<std::string>{word.substr(equals + 1)});
    return true;
  });
  return taken;
}

void OptionSet::parse(const std::vector<std::string>& arguments) {
  const po::options_description known = description();
  std::vector<std::string> words = with_dashes(arguments);
  const std::vector<po::option> switches = take_switch_values(words);
  namespace style = po::command_line_style;
  try {
    po::parsed_options line =
        po::command_line_parser(words)
            .options(known)
            .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
            .allow_unregistered()
            .run();
    line.options.insert(line.options.end(), switches.begin(), switches.end());
    apply(line, "", true);
  } catch (const po::error& error) {
    fail(ExitCode::usage, "{}; motley {} --help says more", error.what(), command_);
  }
  if (config_.empty()) return;
  std::istringstream file(read_file(config_, ExitCode::input));
  try {
    apply(po::parse_config_file(file, known, true), config_ + ": ", false);
  } catch (const po::error& error) {
    fail(ExitCode::usage, "{}: {}", config_, error.what());
  }
}

const OptionSet::Option* OptionSet::find(const std::string& name) const {
  const auto option =
      std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
  return option == options_.end() ? nullptr : &*option;
}

bool OptionSet::has(const std::string& name) const {
  return find(name) != nullptr;
}

bool OptionSet::given(const std::string& name) const {
  const Option* option = find(name);
  MOTLEY_CHECK(option != nullptr);
  return option->given;
}

void OptionSet::require(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const Option* option = find(name);
    MOTLEY_CHECK(option != nullptr);
    if (option->text().empty())
      fail(ExitCode::usage, "--{} is missing; motley {} --help says more", name, command_);
  }
}

std::string OptionSet::ignored() const {
  std::string list;
  for (const Ignored& option : ignored_) {
    if (option.given) list += fmt::format("{}--{}: {}", list.empty() ? "" : "; ", option.name, option.reason);
  }
  return list;
}

std::vector<std::pair<std::string, std::string>> OptionSet::as_used() const {
  std::vector<std::pair<std::string, std::string>> list;
  for (const Option& option : options_) list.emplace_back(option.name, option.text());
  return list;
}

std::string OptionSet::help(const std::string& usage, const std::string& description) const {
  std::string text = "usage: " + usage + "\n\n" + description + "\n";
  if (positional_ != nullptr) text += fmt::format("\n  {:30} {}\n", positional_name_, positional_help_);
  std::string group;
  for (const Option& option : options_) {
    if (option.group != group) text += "\n" + option.group + ":\n";
    group = option.group;
    const std::string left = "--" + option.name;
    text +=
        fmt::format("  {:30} {}{}\n", left, option.help,
                    option.is_switch || option.default_text.empty() ? "" : " [" + option.default_text + "]");
  }
  text += fmt::format("\n  {:30} {}\n", "--config",
                      "read options from FILE, lines of key = value; the command line wins");
  return text;
}

double startup_timeout_s(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string text;
    if (arguments[i] == "--timeout" && i + 1 < arguments.size()) text = arguments[i + 1];
    if (arguments[i].rfind("--timeout=", 0) == 0) text = arguments[i].substr(10);
    const double value = std::atof(text.c_str());
    if (value > 0) return value;
  }
  return 600;
}

}  // namespace motley::cli

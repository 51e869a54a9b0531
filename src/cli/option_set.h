// Options of a command, on top of Boost.Program_options: bound to fields, readable from --config FILE (key =
// value; the command line wins), with sentences for mistakes and the nearest right name for a wrong one.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace motley::cli {

class OptionSet {
 public:
  explicit OptionSet(std::string command) : command_(std::move(command)) {}

  // Starts a group in the help.
  void group(const std::string& title);
  // The field's value is the default.
  void add(const std::string& name, std::string* field, const std::string& help);
  void add(const std::string& name, std::int64_t* field, const std::string& help);
  void add(const std::string& name, int* field, const std::string& help);
  void add(const std::string& name, std::uint64_t* field, const std::string& help);
  void add(const std::string& name, double* field, const std::string& help);
  // Comma-separated, with or without brackets: "0.1,0.05" or "(0.9, 0.999)".
  void add(const std::string& name, std::vector<double>* field, const std::string& help);
  void add(const std::string& name, std::vector<std::int64_t>* field, const std::string& help);
  void add(const std::string& name, std::vector<std::string>* field, const std::string& help);
  // Paths: several words behind the name, commas between them, the option repeated, or all of these.
  void add_paths(const std::string& name, std::vector<std::string>* field, const std::string& help);
  // A switch: --name, or --name=no or --no-name where it is on by itself.
  void add_switch(const std::string& name, bool* field, const std::string& help);
  // Another name of an option that takes a value.
  void alias(const std::string& other, const std::string& name);
  // An option that is accepted and does nothing, for this reason. `expected` is the only value that it may
  // have; empty: any.
  void ignore(const std::string& name, bool is_switch, const std::string& reason,
              const std::string& expected = "");
  // An option that is answered with this sentence.
  void refuse(const std::string& name, const std::string& sentence);
  // The one argument that has no name, e.g. FILE.
  void positional(const std::string& name, std::string* field, const std::string& help);

  // Fills the fields; throws Error(usage), or Error(input) for a --config file that cannot be read.
  void parse(const std::vector<std::string>& arguments);
  bool has(const std::string& name) const;
  // Whether the option was given on the command line or in the file.
  bool given(const std::string& name) const;
  // Error(usage) for the first of these options that has no value.
  void require(std::initializer_list<const char*> names) const;
  // The options that were given and do nothing, as "--name: reason; --name: reason"; empty: none.
  std::string ignored() const;
  // Every option (but --config) with its value as used, in the order of the help.
  std::vector<std::pair<std::string, std::string>> as_used() const;
  std::string help(const std::string& usage, const std::string& description) const;

 private:
  using Setter = std::function<void(const std::string& text)>;
  struct Option {
    std::string name, help, group, default_text;
    bool is_switch = false;
    bool is_list =
        false;  // may be given more than once; set() then gets all values, with commas between them
    Setter set;
    std::function<std::string()> text;  // the current value
    bool given = false;
  };
  struct Ignored {
    std::string name, reason, expected;
    bool is_switch = false;
    bool given = false;
  };
  void declare(const std::string& name, const std::string& help, bool is_switch, Setter set,
               std::function<std::string()> text);
  const Option* find(const std::string& name) const;
  bool note_ignored(const std::string& name, const std::string& text, const std::string& where);
  [[noreturn]] void fail_unknown(const std::string& name, const std::string& where) const;
  void apply(const boost::program_options::parsed_options& parsed, const std::string& where,
             bool override_given);
  std::vector<boost::program_options::option> take_switch_values(std::vector<std::string>& words) const;
  boost::program_options::options_description description() const;

  std::string command_, group_;
  std::vector<Option> options_;
  std::vector<Ignored> ignored_;
  std::map<std::string, std::string> aliases_;  // other name -> name
  std::map<std::string, std::string> refused_;  // name -> sentence
  std::string positional_name_, positional_help_;
  std::string* positional_ = nullptr;
  std::string config_;
};

// The deadline for the first communication, before the options are parsed: --timeout as it stands in the
// arguments, if it is a number.
double startup_timeout_s(const std::vector<std::string>& arguments);

}  // namespace motley::cli

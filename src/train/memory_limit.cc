#include "train/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/quantity.h"

namespace motley::train {
namespace {

constexpr double most_bytes = 0x1p62;

struct Entry {
  int rank = 0;
  MemoryLimits::Part part;
};

// One "2:1.5G@200" of the whole text.
class EntryParser {
 public:
  EntryParser(std::string_view item, const std::string& text, int ranks)
      : item_(item), text_(text), ranks_(ranks), at_(item.data()), end_(item.data() + item.size()) {}

  Entry parse() {
    Entry entry;
    entry.rank = rank();
    expect(':');
    entry.part.bytes = bytes();
    if (at_ != end_) {
      expect('@');
      entry.part.first_step = step();
    }
    if (at_ != end_) refuse_form();
    return entry;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail(ExitCode::usage, "--memory-limit {}: \"{}\" {}", text_, item_, why);
  }
  [[noreturn]] void refuse_form() const {
    refuse(
        "is not of the form RANK:BYTES or RANK:BYTES@STEP, such as 1:600M or 1:1.5G@100 "
        "(K, M, G and T are powers of 1024)");
  }

  void expect(char wanted) {
    if (at_ == end_ || *at_ != wanted) refuse_form();
    ++at_;
  }

  int rank() {
    int rank = 0;
    const auto found = std::from_chars(at_, end_, rank);
    if (found.ec == std::errc::invalid_argument) refuse_form();
    at_ = found.ptr;
    if (found.ec == std::errc::result_out_of_range || rank < 0 || rank >= ranks_)
      refuse(fmt::format("names a rank that does not exist; the ranks of this run are 0 to {}", ranks_ - 1));
    return rank;
  }

  std::size_t bytes() {
    const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
    const std::string_view text = rest.substr(0, rest.find('@'));
    const std::optional<double> number = parse_bytes(text);
    if (!number) refuse_form();
    if (*number > most_bytes) refuse("is more memory than there is");
    if (*number < 1) refuse("leaves no memory at all");
    at_ += text.size();
    return static_cast<std::size_t>(*number);
  }

  std::int64_t step() {
    std::int64_t step = 0;
    const auto found = std::from_chars(at_, end_, step);
    if (found.ec != std::errc{}) refuse_form();
    at_ = found.ptr;
    if (step < 1) refuse("begins before the first step, which is 1");
    return step;
  }

  std::string_view item_;
  const std::string& text_;
  int ranks_;
  const char* at_;
  const char* end_;
};

}  // namespace

std::optional<std::size_t> MemoryLimits::bytes(std::int64_t step) const {
  std::optional<std::size_t> found;
  for (const Part& part : parts) {
    if (part.first_step <= step) found = part.bytes;
  }
  return found;
}

std::vector<MemoryLimits> parse_memory_limit(const std::string& text, int ranks) {
  std::vector<MemoryLimits> limits(static_cast<std::size_t>(ranks));
  if (text.empty()) return limits;

  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);

    const Entry entry = EntryParser(item, text, ranks).parse();
    std::vector<MemoryLimits::Part>& parts = limits[static_cast<std::size_t>(entry.rank)].parts;
    const auto place = std::lower_bound(
        parts.begin(), parts.end(), entry.part.first_step,
        [](const MemoryLimits::Part& part, std::int64_t step) { return part.first_step < step; });
    if (place != parts.end() && place->first_step == entry.part.first_step) {
      fail(ExitCode::usage, "--memory-limit {}: two limits begin for rank {} at step {}", text, entry.rank,
           entry.part.first_step);
    }
    parts.insert(place, entry.part);
  }
  return limits;
}

void refuse_limit_steps(const std::string& text) {
  if (text.find('@') == std::string::npos) return;
  fail(ExitCode::usage, "--memory-limit {}: steps are those of motley train; expected RANK:BYTES", text);
}

MemoryLimits begin_with_memory_limit(const std::string& text, const comm::Communicator& world,
                                     Backend& backend) {
  MemoryLimits limits = parse_memory_limit(text, world.size())[static_cast<std::size_t>(world.rank())];
  if (const auto bytes = limits.bytes(1)) backend.set_memory_limit(*bytes);
  return limits;
}

}  // namespace motley::train

#include "support/bert_shards.h"

#include <algorithm>
#include <fstream>

#include "core/philox.h"
#include "unit/io/test_files.h"

namespace motley::test {
namespace {

constexpr std::int32_t pad = 0, cls = 2, sep = 3, mask_token = 4, first_word = 5;
constexpr std::int32_t words = bert_vocab - first_word;

class Draw {
 public:
  Draw(unsigned seed, std::uint32_t index) : key_(seed, Purpose::augmentation, 0, 0), index_(index) {}
  std::int32_t below(std::int32_t limit) {
    return static_cast<std::int32_t>(random_u32(key_, index_, next_++) % static_cast<std::uint32_t>(limit));
  }

 private:
  RandomKey key_;
  std::uint32_t index_, next_ = 0;
};

std::int32_t follower(std::int32_t word) {
  return first_word + (7 * (word - first_word) + 3) % words;
}

void choose_masked(Draw& draw, int length, BertSample& sample) {
  std::vector<std::int32_t> places;
  for (std::int32_t place = 1; place < length; ++place) {
    if (sample.ids[static_cast<std::size_t>(place)] >= first_word) places.push_back(place);
  }
  const int count = 1 + draw.below(static_cast<std::int32_t>(bert_predictions));
  for (int i = 0; i < count && !places.empty(); ++i) {
    const auto chosen = places.begin() + draw.below(static_cast<std::int32_t>(places.size()));
    sample.positions.push_back(*chosen);
    places.erase(chosen);
  }
  std::sort(sample.positions.begin(), sample.positions.end());
  for (const std::int32_t place : sample.positions) {
    std::int32_t& id = sample.ids[static_cast<std::size_t>(place)];
    sample.labels.push_back(id);
    id = mask_token;
  }
  sample.positions.resize(bert_predictions, 0);
  sample.labels.resize(bert_predictions, 0);
}

BertSample make_sample(unsigned seed, std::uint32_t index, bool masked) {
  Draw draw(seed, index);
  BertSample sample;
  const int length = static_cast<int>(bert_seq) - draw.below(static_cast<std::int32_t>(bert_seq) / 2);
  const int second = length / 2;
  sample.next_sentence = draw.below(2);
  std::int32_t word = 0;
  for (int place = 0; place < static_cast<int>(bert_seq); ++place) {
    std::int32_t id = pad;
    if (place == 0) {
      id = cls;
    } else if (place == second - 1 || place == length - 1) {
      id = sep;
    } else if (place == second) {
      id = word = first_word + 2 * draw.below(words / 2 - 1) + sample.next_sentence;
    } else if (place < length) {
      // Some words are much more frequent than others, which is soon learned.
      id = word = place % 2 == 0 ? follower(word) : first_word + draw.below(1 + draw.below(1 + draw.below(words)));
    }
    sample.ids.push_back(id);
    sample.mask.push_back(place < length ? 1 : 0);
    sample.types.push_back(place >= second && place < length ? 1 : 0);
  }
  if (masked) choose_masked(draw, length, sample);
  return sample;
}

}  // namespace

BertSample learnable_bert_sample(unsigned seed, std::uint32_t index) {
  return make_sample(seed, index, true);
}

void write_learnable_bert_shards(const std::filesystem::path& directory, const BertShardForm& form,
                                 unsigned seed) {
  std::filesystem::create_directories(directory);
  std::uint32_t index = 0;
  for (std::size_t shard = 0; shard < form.rows.size(); ++shard) {
    std::vector<std::int32_t> ids, mask, types, positions, labels, next;
    const auto append = [](std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (int row = 0; row < form.rows[shard]; ++row) {
      const BertSample sample = make_sample(seed, index++, form.masked);
      append(ids, sample.ids);
      append(mask, sample.mask);
      append(types, sample.types);
      append(positions, sample.positions);
      append(labels, sample.labels);
      next.push_back(sample.next_sentence);
    }
    Hdf5File file((directory / ("shard" + std::to_string(shard) + ".hdf5")).string());
    const auto rows = static_cast<hsize_t>(form.rows[shard]);
    const auto add = [&](const char* name, hsize_t width, hid_t type, const std::vector<std::int32_t>& values) {
      const hsize_t chunk = std::min<hsize_t>(rows, static_cast<hsize_t>(form.chunk_rows));
      std::vector<hsize_t> extents{rows}, chunks{chunk};
      if (width > 0) {
        extents.push_back(width);
        chunks.push_back(std::min<hsize_t>(width, 8));
      }
      file.add(name, extents, type, H5T_NATIVE_INT32, values.data(), {chunks, 4, false});
    };
    add("input_ids", bert_seq, H5T_STD_I32LE, ids);
    add("input_mask", bert_seq, H5T_STD_I8LE, mask);
    add("segment_ids", bert_seq, H5T_STD_I8LE, types);
    if (form.masked) {
      add("masked_lm_positions", bert_predictions, H5T_STD_I32LE, positions);
      add("masked_lm_ids", bert_predictions, H5T_STD_I32LE, labels);
    }
    add("next_sentence_labels", 0, H5T_STD_I8LE, next);
  }
}

void write_bert_config(const std::filesystem::path& path, const std::string& activation) {
  std::ofstream(path) << "{\"vocab_size\": " << bert_vocab
                      << ", \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                         "\"intermediate_size\": 64, \"max_position_embeddings\": 40, \"hidden_act\": \""
                      << activation << "\"}\n";
}

void write_bert_vocabulary(const std::filesystem::path& path) {
  std::ofstream out(path);
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) out << token << '\n';
  for (std::int32_t id = first_word; id < bert_vocab; ++id) out << (id % 3 == 0 ? "##" : "") << "w" << id << '\n';
}

}  // namespace motley::test

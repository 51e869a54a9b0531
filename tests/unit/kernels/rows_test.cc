// Rows gathered, and summed where equal indices point.
#include "backend_test.h"
#include "kernels/row_groups.h"

namespace motley::test {
namespace {

TEST(GroupRows, brings_equal_indices_together_in_order) {
  HostRowGroups groups;
  group_rows(std::vector<std::int32_t>{5, 2, 5, 0, 2, 5}, groups);
  EXPECT_EQ(groups.rows, (std::vector<std::int32_t>{0, 2, 5}));
  EXPECT_EQ(groups.starts, (std::vector<std::int32_t>{0, 1, 3, 6}));
  EXPECT_EQ(groups.sources, (std::vector<std::int32_t>{3, 1, 4, 0, 2, 5}));
  group_rows({}, groups);
  EXPECT_EQ(groups.rows, std::vector<std::int32_t>{});
  EXPECT_EQ(groups.starts, std::vector<std::int32_t>{0});
  EXPECT_EQ(groups.sources, std::vector<std::int32_t>{});
}

class RowsTest : public BackendTest {
 protected:
  Tensor ints(const std::vector<std::int32_t>& values) {
    return {*backend, values, {static_cast<std::int64_t>(values.size())}};
  }
};
MOTLEY_ON_EVERY_BACKEND(RowsTest);

TEST_P(RowsTest, gather_copies_rows) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = typed(dtype, random_values(5 * 33, 1), {5, 33}), y = junk({4, 33}, dtype);
    const std::vector<std::int32_t> index{4, 0, 4, 2};
    backend->gather_rows(x, ints(index), y);
    const auto from = x.floats(), got = y.floats();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], from[static_cast<std::size_t>(index[i / 33]) * 33 + i % 33]);
    }
  }
  backend->gather_rows(zeros({5, 3}), ints({}), zeros({0, 3}));
}

TEST_P(RowsTest, scatter_adds_all_sources_of_a_row_to_what_is_there) {
  const std::vector<std::int32_t> index{1, 6, 1, 0, 6, 6, 1};
  for (const auto& [from, to] :
       {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}}) {
    for (const std::int64_t width : {1, 33, 130}) {
      const Tensor dy = typed(from, random_values(7 * width, 1), {7, width});
      const Tensor x = typed(to, random_values(8 * width, 2), {8, width});
      const auto before = x.floats(), terms = dy.floats();
      std::vector<double> want(before.begin(), before.end());
      for (std::size_t i = 0; i < terms.size(); ++i) {
        const auto w = static_cast<std::size_t>(width);
        want[static_cast<std::size_t>(index[i / w]) * w + i % w] += static_cast<double>(terms[i]);
      }
      HostRowGroups host;
      group_rows(index, host);
      const Tensor rows = ints(host.rows), starts = ints(host.starts), sources = ints(host.sources);
      backend->scatter_add_rows({rows, starts, sources}, dy, x);
      expect_within(x.floats(), want, rounding(to), 1e-6);
    }
  }
}

TEST_P(RowsTest, a_long_group_is_summed_exactly_enough) {
  constexpr std::int64_t count = 20000;
  HostRowGroups host;
  group_rows(std::vector<std::int32_t>(count, 1), host);
  const Tensor rows = ints(host.rows), starts = ints(host.starts), sources = ints(host.sources);
  const Tensor dy = tensor(std::vector<float>(count, 0.1f), {count, 1}), x = zeros({2, 1});
  backend->scatter_add_rows({rows, starts, sources}, dy, x);
  EXPECT_EQ(x.values()[0], 0.0f);
  EXPECT_FLOAT_EQ(x.values()[1], 2000.0f);
}

TEST_P(RowsTest, embedding_in_bfloat16_is_the_rounded_sum) {
  const Tensor word = random({9, 33}, 1), position = random({4, 33}, 2), type = random({2, 33}, 3);
  const Tensor ids(*backend, std::vector<std::int32_t>{8, 0, 3, 3, 1, 7}, {2, 3});
  const Tensor types(*backend, std::vector<std::int32_t>{0, 1, 1, 0, 0, 1}, {2, 3});
  const Tensor exact = junk({2, 3, 33}), rounded = junk({2, 3, 33}, DType::bf16);
  backend->embedding_forward(word, position, type, ids, types, exact);
  backend->embedding_forward(word, position, type, ids, types, rounded);
  EXPECT_EQ(rounded.floats(), typed(DType::bf16, exact.values(), {2, 3, 33}).floats());
}

TEST_P(RowsTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({5, 3}), ids = Tensor(*backend, DType::i32, {2, 4});
  expect_refused([&] { backend->gather_rows(x, ints({1}), zeros({1, 4})); }, {"gather_rows", "y"});
  expect_refused(
      [&] {
        backend->embedding_forward(x, zeros({3, 3}), x, ids, ids, zeros({2, 4, 3}));
      },
      {"embedding_forward", "positions"});
  const Tensor one = ints({0}), two = ints({0, 1}), ends = ints({0, 1});
  expect_refused(
      [&] {
        backend->scatter_add_rows({one, ends, two}, zeros({1, 3}), x);
      },
      {"scatter_add_rows", "dy"});
  expect_refused(
      [&] {
        backend->scatter_add_rows({one, one, one}, zeros({1, 3}), x);
      },
      {"scatter_add_rows", "starts"});
}

}  // namespace
}  // namespace motley::test

#include "models/image_archs.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"

namespace motley {
namespace {

std::string sentence(ExitCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

TEST(ImageArchs, counts_multiply_adds_as_they_are_written_out_by_hand) {
  const std::int64_t lenet = 28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10;
  EXPECT_EQ(find_image_arch("lenet").make(Shape{32, 32, 3}, 10)->body.multiply_adds(), lenet);
  const std::int64_t mnist = 26 * 26 * 32 * 9 + 24 * 24 * 64 * 288 + 9216 * 128 + 128 * 10;
  EXPECT_EQ(find_image_arch("mnist").make(Shape{28, 28, 1}, 10)->body.multiply_adds(), mnist);
}

TEST(ImageArchs, work_from_their_smallest_image_on_and_for_any_channels_and_classes) {
  for (const ImageArch& arch : image_archs()) {
    for (const std::int64_t more : {0, 1, 13}) {
      const Shape input{arch.least_side, arch.least_side + more, 2};
      EXPECT_EQ(sentence(ExitCode::input, [&] { check_fits(arch, input, "a file"); }), "accepted")
          << arch.name;
      const std::unique_ptr<Backend> backend = make_cpu_backend(1);
      const auto network = arch.make(input, 17);
      EXPECT_EQ(network->body.output_shape(), Shape{17}) << arch.name;
      if (network->parameters.count() > 40'000'000) continue;  // which takes long to draw
      network->parameters.allocate(*backend, true);
      network->parameters.initialize(1);
      network->body.reserve(*backend, 2, true);
      Buffer x(*backend, static_cast<std::size_t>(2 * input.elements()) * sizeof(float));
      const View images = x.view(DType::f32, input.with_batch(2));
      backend->fill_zero(images);
      EXPECT_EQ(network->body.forward(Pass{.backend = *backend}, images).shape, (Shape{2, 17})) << arch.name;
    }
  }
}

TEST(ImageArchs, smaller_images_get_a_sentence) {
  EXPECT_EQ(sentence(ExitCode::input,
                     [] {
                       check_fits(find_image_arch("lenet"), Shape{40, 15, 3}, "d/train.h5");
                     }),
            "d/train.h5: the images have 40 x 15 pixels; network lenet needs at least 16 x 16");
  EXPECT_EQ(sentence(ExitCode::input,
                     [] {
                       check_fits(find_image_arch("mnist"), Shape{5, 5, 3}, "d/train.h5");
                     }),
            "d/train.h5: the images have 5 x 5 pixels; network mnist needs at least 6 x 6");
}

TEST(ImageArchs, an_unknown_name_is_answered_with_the_nearest) {
  EXPECT_EQ(sentence(ExitCode::usage, [] { find_image_arch("lenett"); }),
            "there is no network \"lenett\", did you mean \"lenet\"?; motley train --help-archs lists them");
  EXPECT_EQ(sentence(ExitCode::usage, [] { find_image_arch("transformer-xl"); }),
            "there is no network \"transformer-xl\"; motley train --help-archs lists them");
}

}  // namespace
}  // namespace motley

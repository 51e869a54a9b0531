#include "cli/option_set.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "support/paths.h"

namespace motley::cli {
namespace {

struct Fields {
  std::int64_t batch = 64;
  double rate = 0.5;
  std::vector<double> rates = {1, 2};
  std::string dir = "here";
  bool flag = false;
  std::string file;
};

struct Fixture {
  Fields fields;
  OptionSet set{"test"};
  Fixture() {
    set.group("group");
    set.add("global-batch", &fields.batch, "a number");
    set.add("lr", &fields.rate, "a rate");
    set.add("adam-betas", &fields.rates, "two rates");
    set.add("save-dir", &fields.dir, "a directory");
    set.add_switch("no-save", &fields.flag, "a switch");
    set.positional("FILE", &fields.file, "a file");
  }
};

std::string sentence(const std::vector<std::string>& arguments) {
  Fixture f;
  try {
    f.set.parse(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "accepted";
}

TEST(OptionSet, reads_every_kind_of_value) {
  Fixture f;
  f.set.parse({"--global-batch", "-7", "--lr=1e-3", "--adam-betas", "(0.9, 0.95)", "--no-save", "data.h5"});
  EXPECT_EQ(f.fields.batch, -7);
  EXPECT_EQ(f.fields.rate, 1e-3);
  EXPECT_EQ(f.fields.rates, (std::vector<double>{0.9, 0.95}));
  EXPECT_TRUE(f.fields.flag);
  EXPECT_EQ(f.fields.file, "data.h5");
  EXPECT_EQ(f.fields.dir, "here");
  EXPECT_TRUE(f.set.given("lr"));
  EXPECT_FALSE(f.set.given("save-dir"));
}

TEST(OptionSet, takes_underscores_for_dashes_as_hetseq_writes_them) {
  Fixture f;
  f.set.parse({"--adam_betas=0.1,0.2", "--save_dir", "my_dir"});
  EXPECT_EQ(f.fields.rates, (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(f.fields.dir, "my_dir");
}

TEST(OptionSet, mistakes_get_a_sentence) {
  EXPECT_EQ(sentence({"--globl-batch", "3"}),
            "there is no option --globl-batch, did you mean --global-batch?; motley test --help lists them");
  EXPECT_EQ(sentence({"--zzzzzzz"}), "there is no option --zzzzzzz; motley test --help lists them");
  EXPECT_EQ(sentence({"--global-batch", "many"}), "--global-batch is \"many\"; expected a whole number");
  EXPECT_EQ(sentence({"--global-batch", "3.5"}), "--global-batch is \"3.5\"; expected a whole number");
  EXPECT_EQ(sentence({"--lr", "nan"}), "--lr is \"nan\"; expected a finite number");
  EXPECT_EQ(sentence({"--adam-betas", "0.1,,0.2"}),
            "--adam-betas is \"\"; expected numbers with commas between them");
  EXPECT_EQ(sentence({"--lr", "1", "--lr", "2"}), "--lr was given twice");
  EXPECT_EQ(sentence({"a.h5", "b.h5"}), "\"b.h5\" was not expected; motley test --help says what is");
  EXPECT_NE(sentence({"--global-batch"}).find("global-batch"), std::string::npos);
  EXPECT_NE(sentence({"--global-batch"}), "accepted");
  EXPECT_EQ(sentence({"--no-save=maybe"}), "--no-save is \"maybe\"; expected true or false");
}

TEST(OptionSet, a_switch_may_be_turned_off_and_takes_no_word_behind_it) {
  Fixture f;
  f.fields.flag = true;
  f.set.parse({"--no-save=no"});
  EXPECT_FALSE(f.fields.flag);
  EXPECT_TRUE(f.set.given("no-save"));
  Fixture before;
  before.set.parse({"--no-save", "a.h5"});
  EXPECT_TRUE(before.fields.flag);
  Fixture negated;
  negated.fields.flag = true;
  negated.set.parse({"--no-no-save"});
  EXPECT_FALSE(negated.fields.flag);
  EXPECT_TRUE(negated.set.given("no-save"));
}

TEST(OptionSet, an_option_may_have_another_name) {
  Fixture f;
  f.set.alias("batch-size", "global-batch");
  f.set.parse({"--batch_size", "12"});
  EXPECT_EQ(f.fields.batch, 12);
  EXPECT_TRUE(f.set.given("global-batch"));
  Fixture twice;
  twice.set.alias("batch-size", "global-batch");
  EXPECT_THROW(twice.set.parse({"--batch-size=1", "--global-batch", "2"}), Error);
}

TEST(OptionSet, options_that_do_nothing_are_named_with_their_reasons) {
  const auto with_ignored = [](Fixture& f) {
    f.set.ignore("num-workers", false, "one reader");
    f.set.ignore("fast-stat-sync", true, "always summed");
    f.set.ignore("lr-scheduler", false, "there is one", "Polynomial");
    f.set.refuse("disable-validation", "--disable-validation is --validate-interval 0 here");
  };
  Fixture f;
  with_ignored(f);
  f.set.parse({"--num_workers", "4", "--fast-stat-sync", "--lr", "0.1", "--lr-scheduler=Polynomial",
               "data.h5", "--num-workers=-1"});
  EXPECT_EQ(f.set.ignored(),
            "--num-workers: one reader; --fast-stat-sync: always summed; "
            "--lr-scheduler: there is one");
  EXPECT_EQ(f.fields.rate, 0.1);
  EXPECT_EQ(f.fields.file, "data.h5");
  for (const auto& [name, value] : f.set.as_used()) EXPECT_NE(name, "num-workers");

  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "c.ini").string();
  write_file(path, "num_workers = 4\n", ExitCode::input);
  Fixture from_file;
  with_ignored(from_file);
  from_file.set.parse({"--config", path});
  EXPECT_EQ(from_file.set.ignored(), "--num-workers: one reader");

  const auto refusal = [&](const std::vector<std::string>& arguments) -> std::string {
    Fixture refusing;
    with_ignored(refusing);
    try {
      refusing.set.parse(arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({"--lr-scheduler", "Cosine"}),
            "--lr-scheduler is \"Cosine\"; expected Polynomial: there is one");
  EXPECT_EQ(refusal({"--disable-validation", "--lr", "1"}),
            "--disable-validation is --validate-interval 0 here");
  EXPECT_NE(refusal({"--num-workers"}), "accepted");
}

TEST(OptionSet, the_command_line_wins_over_the_file) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "c.ini").string();
  write_file(path, "# a comment\nglobal-batch = 12\nlr = 0.125\nno-save = true\nadam_betas = 0.3,0.4\n",
             ExitCode::input);
  Fixture f;
  f.set.parse({"--lr", "0.25", "--config", path});
  EXPECT_EQ(f.fields.batch, 12);
  EXPECT_EQ(f.fields.rate, 0.25);
  EXPECT_TRUE(f.fields.flag);
  EXPECT_EQ(f.fields.rates, (std::vector<double>{0.3, 0.4}));
}

TEST(OptionSet, paths_may_be_several_words_have_commas_between_them_and_be_given_again) {
  std::vector<std::string> paths;
  std::string other;
  const auto parse = [&](const std::vector<std::string>& arguments) {
    paths = {"default"};
    OptionSet set("test");
    set.add_paths("input", &paths, "files");
    set.add("out", &other, "a file");
    set.parse(arguments);
    return paths;
  };
  using Paths = std::vector<std::string>;
  EXPECT_EQ(parse({}), (Paths{"default"}));
  EXPECT_EQ(parse({"--input", "a b.txt", "c(1).txt,d", "--out", "o", "--input=e"}),
            (Paths{"a b.txt", "c(1).txt", "d", "e"}));
  EXPECT_EQ(other, "o");
  const test::TemporaryDirectory directory;
  const std::string file = (directory.path() / "c.ini").string();
  write_file(file, "input = f\ninput = g,h\n", ExitCode::input);
  EXPECT_EQ(parse({"--config", file}), (Paths{"f", "g", "h"}));
  EXPECT_EQ(parse({"--config", file, "--input", "a"}), (Paths{"a"}));
  EXPECT_THROW(parse({"--input", "a,,b"}), Error);
  EXPECT_THROW(parse({"--input"}), Error);
}

TEST(OptionSet, mistakes_in_the_file_name_the_file) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "c.ini").string();
  write_file(path, "glbal-batch = 12\n", ExitCode::input);
  EXPECT_EQ(sentence({"--config", path}),
            path +
                ": there is no option --glbal-batch, did you mean --global-batch?; "
                "motley test --help lists them");
}

TEST(OptionSet, says_what_was_used_so_that_it_can_be_read_back) {
  Fixture f;
  f.set.parse({"--lr", "0.1", "--no-save", "--adam-betas", "0.9,0.999"});
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "c.ini").string();
  std::string text;
  for (const auto& [name, value] : f.set.as_used()) text += name + " = " + value + "\n";
  write_file(path, text, ExitCode::input);
  Fixture again;
  again.set.parse({"--config", path});
  EXPECT_EQ(again.set.as_used(), f.set.as_used());
}

TEST(OptionSet, help_lists_options_with_their_defaults) {
  Fixture f;
  const std::string help = f.set.help("motley test FILE", "Tests.");
  EXPECT_NE(help.find("--global-batch                 a number [64]"), std::string::npos) << help;
  EXPECT_NE(help.find("--config"), std::string::npos);
}

}  // namespace
}  // namespace motley::cli

# Every test without mix, from the folder above this one:
#
#     elixir -pa lib/exphil_native/ebin test/all.exs

# Tasks of mix are tested, too.
Mix.start()
Code.require_file("test_helper.exs", __DIR__)
for test <- Path.wildcard(Path.join(__DIR__, "**/*_test.exs")), do: Code.require_file(test)

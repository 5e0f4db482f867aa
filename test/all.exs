# Every test without mix, from the folder above this one:
#
#     elixir -pa lib/exphil_native/ebin test/all.exs

Code.require_file("test_helper.exs", __DIR__)
for test <- Path.wildcard(Path.join(__DIR__, "**/*_test.exs")), do: Code.require_file(test)

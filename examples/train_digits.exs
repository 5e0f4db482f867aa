# Trains a small Mamba on handwritten digits with Axon.Loop, each image a sequence of its eight rows of eight pixels:
#
#     mix run examples/train_digits.exs [--epochs 5] [--backend cpu]
#
# The gradients are those of the native scan. The 360 images that test it are those that digits_mamba.safetensors holds
# out; the other 1437 train it. Everything but the scan runs in Nx's default backend, here in Elixir itself, which is
# where the time goes.

alias ExPhil.Native.{Mamba, Tensor}
alias ExPhil.Native.SelectiveScan.Backend

if not Code.ensure_loaded?(Axon), do: raise("this example wants Nx and Axon: mix local.hex, mix deps.get")

{flags, words, unknown} = OptionParser.parse(System.argv(), strict: [epochs: :integer, backend: :string])

if words != [] or unknown != [] or (flags[:epochs] || 1) < 1 or Backend.parse(flags[:backend] || "auto") == :error do
  IO.puts(:stderr, "flags: --epochs integer, above 0, --backend auto, cpu, cuda, cuda:1 or nx")
  System.halt(2)
end

if flags[:backend], do: System.put_env("EXPHIL_SCAN_BACKEND", flags[:backend])
batch = 40

load = fn file, set ->
  tensors = Tensor.load_safetensors(Path.expand("data/#{file}", __DIR__))
  [images, labels] = for name <- ["images", "labels"], do: Tensor.to_nx(tensors["#{set}.#{name}"])
  {images |> Nx.divide(16) |> Nx.reshape({:auto, 8, 8}), Nx.equal(Nx.new_axis(labels, 1), Nx.iota({1, 10}))}
end

batches = fn {images, labels} -> Enum.zip(Nx.to_batched(images, batch), Nx.to_batched(labels, batch)) end
train = load.("digits_train.safetensors", "train")
held_out = load.("digits_mamba.safetensors", "test")

model =
  Mamba.build(
    embed_size: 8,
    hidden_size: 16,
    state_size: 8,
    num_layers: 1,
    window_size: 8,
    block: :mamba_ssm
  )
  |> Axon.dense(10, name: "head")
  |> Axon.softmax()

started = System.monotonic_time(:millisecond)

trained =
  model
  |> Axon.Loop.trainer(:categorical_cross_entropy, Polaris.Optimizers.adam(learning_rate: 1.0e-2), seed: 0)
  |> Axon.Loop.metric(:accuracy)
  |> Axon.Loop.run(batches.(train), Axon.ModelState.empty(), epochs: flags[:epochs] || 5)

seconds = div(System.monotonic_time(:millisecond) - started, 1000)

%{0 => %{"accuracy" => accuracy}} =
  model |> Axon.Loop.evaluator() |> Axon.Loop.metric(:accuracy) |> Axon.Loop.run(batches.(held_out), trained)

IO.puts("#{Float.round(100 * Nx.to_number(accuracy), 1)}% of 360 held-out images, after #{seconds} s of training")

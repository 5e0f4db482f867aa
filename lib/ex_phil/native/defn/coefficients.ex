if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Coefficients do
    @moduledoc false
    # Decay a and gain g of every frame, for every method: h becomes a h + g v with v = B x. With z = AΔ and
    # φ₁ = (eᶻ−1)/z, φ₂ = (φ₁−1)/z, φ₃ = (φ₂−½)/z:
    #
    # | method | a | g |
    # |---|---|---|
    # | zoh | eᶻ | Δ |
    # | zoh_exact | eᶻ | Δφ₁ |
    # | foh | eᶻ | Δ²φ₂ |
    # | bilinear, q = 1/(1−z/2) | (1+z/2)q | Δq |
    # | poly | eᶻ | Δφ₁ + ½Δ²φ₂ |
    # | highorder | eᶻ | Δφ₁ + Δ²φ₂ + ½Δ³φ₃ |
    # | rk4 | eᶻ | Δ(1 + z/2 + z²/6 + z³/24) |
    #
    # zoh is Mamba's (Gu and Dao, "Mamba", 2023, which simplifies B̄ to ΔB); the φ functions are those of exponential
    # integrators (Hochbruck and Ostermann, "Exponential integrators", Acta Numerica 2010); the cut series are those
    # of the VisionMamba implementation. The native library has the same table, with its derivatives, in
    # `discretize.rs`; here they are for Nx to find.

    # Row k holds the polynomial in A that stands beside Δᵐ⁺ᵏ, lowest power first; m is 2 for foh, else 1.
    @foh_series [[1 / 2], [0, 1 / 6], [0, 0, 1 / 24], [0, 0, 0, 1 / 120]]
    @poly_series [[1], [1 / 4, 1 / 2], [0, 1 / 12, 1 / 6], [0, 0, 1 / 48, 1 / 24]]
    @highorder_series [[1], [1 / 2, 1 / 2], [1 / 12, 1 / 6, 1 / 6], [0, 1 / 48, 1 / 24, 1 / 24]]

    @doc "`{decay, gain}` of frames with step sizes `delta` in a system `a`, which broadcast with each other."
    def of(method, coefficients, delta, a)

    def of(:zoh, _, delta, a), do: {decay(delta, a), delta}

    def of(:zoh_exact, _, delta, a) do
      {e, p1, _, _} = phi(Nx.multiply(delta, a))
      {e, Nx.multiply(p1, delta)}
    end

    def of(:foh, :exact, delta, a) do
      {e, _, p2, _} = phi(Nx.multiply(delta, a))
      {e, p2 |> Nx.multiply(delta) |> Nx.multiply(delta)}
    end

    def of(:foh, :taylor, delta, a), do: {decay(delta, a), delta |> Nx.multiply(series(@foh_series, delta, a))}

    def of(:bilinear, _, delta, a) do
      half = delta |> Nx.multiply(a) |> Nx.multiply(0.5)
      rest = Nx.subtract(1.0, half)
      {Nx.divide(Nx.add(1.0, half), rest), Nx.divide(delta, rest)}
    end

    def of(:poly, :exact, delta, a) do
      {e, p1, p2, _} = phi(Nx.multiply(delta, a))
      {e, horner([p1, Nx.multiply(p2, 0.5)], delta) |> Nx.multiply(delta)}
    end

    def of(:poly, :taylor, delta, a), do: {decay(delta, a), series(@poly_series, delta, a)}

    def of(:highorder, :exact, delta, a) do
      {e, p1, p2, p3} = phi(Nx.multiply(delta, a))
      {e, horner([p1, p2, Nx.multiply(p3, 0.5)], delta) |> Nx.multiply(delta)}
    end

    def of(:highorder, :taylor, delta, a), do: {decay(delta, a), series(@highorder_series, delta, a)}

    def of(:rk4, _, delta, a) do
      z = Nx.multiply(delta, a)
      {Nx.exp(z), horner([1, 1 / 2, 1 / 6, 1 / 24], z) |> Nx.multiply(delta)}
    end

    defp decay(delta, a), do: Nx.exp(Nx.multiply(delta, a))

    # Δ Σₖ pₖ(A) Δᵏ
    defp series(rows, delta, a), do: rows |> Enum.map(&horner(&1, a)) |> horner(delta) |> Nx.multiply(delta)

    # {eᶻ, φ₁, φ₂, φ₃}. Near zero the definitions cancel; there φ₄ = Σ zᵏ/(k+4)! and φₖ = 1/k! + zφₖ₊₁. They meet
    # where they lose equally much, sooner for φ₁ than for φ₃. Both sides are computed everywhere, so each gets an
    # argument at which it is finite: what is not taken must not make the gradient a number that is none.
    defp phi(z) do
      size = Nx.abs(z)
      near = Nx.select(Nx.less(size, 3.0), z, 0.0)
      s4 = horner(for(k <- 0..terms(Nx.type(z)), do: 1 / factorial(k + 4)), near)
      s3 = Nx.add(in_type(1 / 6, z), Nx.multiply(near, s4))
      s2 = Nx.add(1 / 2, Nx.multiply(near, s3))
      s1 = Nx.add(1.0, Nx.multiply(near, s2))

      far = Nx.select(Nx.less(size, 1.0), 1.0, z)
      l1 = Nx.exp(far) |> Nx.subtract(1.0) |> Nx.divide(far)
      l2 = l1 |> Nx.subtract(1.0) |> Nx.divide(far)
      l3 = l2 |> Nx.subtract(0.5) |> Nx.divide(far)

      within = fn radius, inside, outside -> Nx.select(Nx.less(size, radius), inside, outside) end
      {Nx.exp(z), within.(1.0, s1, l1), within.(3.0, s2, l2), within.(3.0, s3, l3)}
    end

    # The last of the terms that |z| < 3 needs: 3ᵏ/(k+4)! is then below the precision.
    defp terms({_, 32}), do: 13
    defp terms({:c, 64}), do: 13
    defp terms(_double), do: 23

    defp factorial(n), do: Enum.product(1..n)

    # Σ cₖ zᵏ
    defp horner(coefficients, z) do
      [last | rest] = Enum.reverse(coefficients)

      Enum.reduce(rest, in_type(last, z), fn coefficient, sum ->
        coefficient |> in_type(z) |> Nx.add(Nx.multiply(z, sum))
      end)
    end

    @doc "A number in the type of a tensor. Nx before 0.10 would round a bare one to f32."
    def in_type(number, like) when is_number(number), do: Nx.tensor(number, type: Nx.type(like))
    def in_type(tensor, _like), do: tensor
  end
end

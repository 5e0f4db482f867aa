//! The naive twin: the operation and its gradients in plain float64, one recurrence at a time, as it stands in the
//! literature. Slow, short, and what every fast path is compared with.

use num_complex::Complex64;

use crate::discretize::{Field, Partials, Prepared, with_discretization};
use crate::{ElementType, Gradients, Inputs, OutputGradients, Outputs, Problem, Projection};

impl Field for Complex64 {
    type Real = f64;
    type Rate = Self;
    const PHI_TERMS: usize = 23;

    fn from_real(real: f64) -> Self {
        real.into()
    }
    fn literal(self, value: f64) -> Self {
        value.into()
    }
    fn times(self, real: f64) -> Self {
        self * real
    }
    fn times_add(self, real: f64, term: Self) -> Self {
        self * real + term
    }
    fn mul_add(self, factor: Self, term: Self) -> Self {
        self * factor + term
    }
    fn inverse(self) -> Self {
        self.inv()
    }
    fn precise_inverse(self) -> Self {
        self.inv()
    }
    fn rate(self) -> Self {
        self
    }
    fn decay(rate: &Self, delta: f64) -> Self {
        let z = rate * delta;
        if z.im == 0.0 { z.re.exp().into() } else { z.exp() }
    }
    fn fine_decay(rate: &Self, delta: f64) -> Self {
        Self::decay(rate, delta)
    }
    /// e^(x+iy) − 1 = (eˣ−1) cos y − 2 sin²(y/2) + i eˣ sin y.
    fn less_one(decay: Self, rate: &Self, delta: f64) -> Self {
        let z = rate * delta;
        let half = (0.5 * z.im).sin();
        Self::new(z.re.exp_m1() * z.im.cos() - 2.0 * half * half, decay.im)
    }
    fn within(self, radius: f64, inside: Self, outside: Self) -> Self {
        if self.norm() < radius { inside } else { outside }
    }
}

/// Elements of any type as float64.
pub fn decode(element: ElementType, bytes: &[u8]) -> Vec<f64> {
    fn all<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|element| read(element.try_into().expect("N bytes"))).collect()
    }
    match element {
        ElementType::F32 => all(bytes, |e| f32::from_ne_bytes(e).into()),
        ElementType::F64 => all(bytes, f64::from_ne_bytes),
        ElementType::Bf16 => all(bytes, |e| half::bf16::from_ne_bytes(e).into()),
        ElementType::F16 => all(bytes, |e| half::f16::from_ne_bytes(e).into()),
        ElementType::S32 => all(bytes, |e| i32::from_ne_bytes(e).into()),
    }
}

/// The inverse of [`decode`], rounding to nearest.
pub fn encode(element: ElementType, values: &[f64]) -> Vec<u8> {
    match element {
        ElementType::F32 => values.iter().flat_map(|&v| (v as f32).to_ne_bytes()).collect(),
        ElementType::F64 => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        ElementType::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f64(v).to_ne_bytes()).collect(),
        ElementType::F16 => values.iter().flat_map(|&v| half::f16::from_f64(v).to_ne_bytes()).collect(),
        ElementType::S32 => values.iter().flat_map(|&v| (v as i32).to_ne_bytes()).collect(),
    }
}

/// y and final_state, in float64.
pub fn forward(problem: &Problem, inputs: Inputs<&[u8]>) -> Outputs<Vec<f64>> {
    Scan::new(problem, inputs).run(None).0
}

/// The gradients of Σ y·dy + Σ final_state·dfinal_state with respect to every input present, in float64.
pub fn backward(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    output_gradients: OutputGradients<&[u8]>,
) -> Gradients<Vec<f64>> {
    forward_and_backward(problem, inputs, output_gradients).1
}

/// Both, in less time than one after the other.
pub fn forward_and_backward(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    output_gradients: OutputGradients<&[u8]>,
) -> (Outputs<Vec<f64>>, Gradients<Vec<f64>>) {
    let output_gradients = output_gradients.map(|name, bytes| decode(problem.element.of(name), bytes));
    let (outputs, gradients) = Scan::new(problem, inputs).run(Some(&output_gradients));
    (outputs, gradients.expect("they were asked for"))
}

/// One frame that a recurrence passes through, in the order of the scan.
struct Frame {
    /// Where the frame lies in the row.
    t: usize,
    /// Whether it begins another sequence than the frame before it.
    reset: bool,
    /// Whether it ends one: the same, seen from the other side.
    last: bool,
}

struct Scan<'a> {
    p: &'a Problem,
    inputs: Inputs<Vec<f64>>,
    /// Δ {batch, seq, dim} and dΔ/ddt.
    delta: Vec<f64>,
    delta_derivative: Vec<f64>,
}

/// What a channel of a batch row has of every frame that its recurrences pass through.
struct Channel {
    batch: usize,
    d: usize,
    x: Vec<f64>,
    delta: Vec<f64>,
    /// Before the gate.
    y: Vec<f64>,
    /// The gradient of that, and of x and Δ.
    dy: Vec<f64>,
    dx: Vec<f64>,
    ddelta: Vec<f64>,
}

impl<'a> Scan<'a> {
    fn new(p: &'a Problem, inputs: Inputs<&[u8]>) -> Self {
        let inputs = inputs.map(|name, bytes| decode(p.element.of(name), bytes));
        let (mut delta, mut delta_derivative) = (inputs.dt.clone(), vec![1.0; inputs.dt.len()]);
        for (i, (delta, derivative)) in delta.iter_mut().zip(&mut delta_derivative).enumerate() {
            if let Some(bias) = &inputs.dt_bias {
                *delta += bias[i % p.dim];
            }
            if p.dt_softplus && (*delta <= 20.0 || delta.is_nan()) {
                (*delta, *derivative) = (delta.exp().ln_1p(), sigmoid(*delta));
            }
            if let Some([min, max]) = p.dt_limit
                && (*delta < min || *delta > max)
            {
                (*delta, *derivative) = (delta.clamp(min, max), 0.0);
            }
        }
        Self { p, delta, delta_derivative, inputs }
    }

    fn frames(&self, batch: usize) -> Vec<Frame> {
        let p = self.p;
        let mut frames: Vec<Frame> = Vec::new();
        let mut current = None;
        for i in 0..p.seq {
            let t = if p.reverse { p.seq - 1 - i } else { i };
            let index = self.inputs.seq_idx.as_ref().map_or(0.0, |index| index[batch * p.seq + t]);
            if index >= 0.0 {
                let reset = current.is_some_and(|current| current != index);
                if let (true, Some(frame)) = (reset, frames.last_mut()) {
                    frame.last = true;
                }
                frames.push(Frame { t, reset, last: false });
                current = Some(index);
            }
        }
        frames
    }

    /// Index of a frame of a channel in x and its like.
    fn at(&self, batch: usize, t: usize, d: usize) -> usize {
        (batch * self.p.seq + t) * self.p.dim + d
    }

    fn number(&self, values: &[f64], index: usize) -> Complex64 {
        match self.p.complex {
            true => Complex64::new(values[2 * index], values[2 * index + 1]),
            false => values[index].into(),
        }
    }

    fn accumulate(&self, values: &mut [f64], index: usize, number: Complex64) {
        if self.p.complex {
            values[2 * index] += number.re;
            values[2 * index + 1] += number.im;
        } else {
            values[index] += number.re;
        }
    }

    /// Index of an element of b or c.
    fn projected(&self, projection: Projection, batch: usize, t: usize, d: usize, n: usize) -> usize {
        let p = self.p;
        match projection {
            Projection::PerFrame { groups } => {
                ((batch * p.seq + t) * groups + d / (p.dim / groups)) * p.state + n
            }
            Projection::Constant => d * p.state + n,
        }
    }

    /// States of one recurrence after every frame; backwards from zero where `bidirectional` asks.
    fn states(&self, channel: &Channel, n: usize, frames: &[Frame]) -> Recurrence {
        let (p, &Channel { batch, d, .. }) = (self.p, channel);
        let a = Prepared::new(self.number(&self.inputs.a, d * p.state + n));
        let initial = match &self.inputs.initial_state {
            Some(states) => self.number(states, (batch * p.dim + d) * p.state + n),
            None => Complex64::ZERO,
        };
        let partials = |delta: f64| {
            with_discretization!(p.method, p.coefficients, D => {
                let (decay, _) = <D as d::Discretization>::coefficients(delta, &a);
                <D as d::Discretization>::partials(delta, &a, decay)
            })
        };
        let step = |(i, frame): (usize, &Frame)| {
            let b = self.number(&self.inputs.b, self.projected(p.b, batch, frame.t, d, n));
            Step { partials: partials(channel.delta[i]), v: b * channel.x[i] }
        };
        let steps: Vec<Step> = frames.iter().enumerate().map(step).collect();
        let mut forward = Vec::with_capacity(steps.len());
        let mut h = initial;
        for (frame, Step { partials, v }) in frames.iter().zip(&steps) {
            let before = if frame.reset { Complex64::ZERO } else { h };
            h = recur(partials.a, before) + partials.g * v;
            forward.push((before, h));
        }
        let mut backward = vec![(Complex64::ZERO, Complex64::ZERO); steps.len()];
        if p.bidirectional {
            let mut h = Complex64::ZERO;
            for (i, Step { partials, v }) in steps.iter().enumerate().rev() {
                let before = if frames[i].last { Complex64::ZERO } else { h };
                h = recur(partials.a, before) + partials.g * v;
                backward[i] = (before, h);
            }
        }
        Recurrence { steps, forward, backward, last: h }
    }

    /// The outputs, and, if those of the outputs are given, the gradients of the inputs.
    fn run(
        &self,
        output_gradients: Option<&OutputGradients<Vec<f64>>>,
    ) -> (Outputs<Vec<f64>>, Option<Gradients<Vec<f64>>>) {
        let p = self.p;
        let zeros = |values: &Vec<f64>| vec![0.0; values.len()];
        let mut y = zeros(&self.inputs.x);
        let mut final_state = vec![0.0; p.batch * p.dim * p.state * p.components()];
        let out = || self.inputs.as_ref().differentiable().map(|_, values| zeros(values));
        let mut back = output_gradients.map(|given| (given, out()));
        for batch in 0..p.batch {
            let frames = self.frames(batch);
            for d in 0..p.dim {
                let mut channel = self.channel(batch, d, &frames, output_gradients);
                for n in 0..p.state {
                    let recurrence = self.states(&channel, n, &frames);
                    for (i, frame) in frames.iter().enumerate() {
                        let c = self.number(&self.inputs.c, self.projected(p.c, batch, frame.t, d, n));
                        let h = recurrence.forward[i].1 + recurrence.backward[i].1;
                        channel.y[i] += self.p.weight() * real_product(c, h);
                    }
                    self.accumulate(&mut final_state, (batch * p.dim + d) * p.state + n, recurrence.last);
                    if let Some((given, out)) = &mut back {
                        self.backward_state(&mut channel, n, &frames, &recurrence, given, out);
                    }
                }
                self.finish(&mut channel, &frames, &mut y);
                if let Some((given, out)) = &mut back {
                    self.finish_backward(&channel, &frames, given, out);
                }
            }
        }
        if let Some((_, Gradients { dt, dt_bias: Some(dt_bias), .. })) = &mut back {
            for (i, ddt) in dt.iter().enumerate() {
                dt_bias[i % p.dim] += ddt;
            }
        }
        (Outputs { y, final_state: Some(final_state) }, back.map(|(_, out)| out))
    }

    fn channel(
        &self,
        batch: usize,
        d: usize,
        frames: &[Frame],
        output_gradients: Option<&OutputGradients<Vec<f64>>>,
    ) -> Channel {
        let of_frames = |values: &[f64]| -> Vec<f64> {
            frames.iter().map(|frame| values[self.at(batch, frame.t, d)]).collect()
        };
        let mut dy = output_gradients.map_or_else(Vec::new, |given| of_frames(&given.dy));
        if let Some(z) = &self.inputs.z {
            for (g, z) in dy.iter_mut().zip(of_frames(z)) {
                *g *= z * sigmoid(z);
            }
        }
        let zeros = || vec![0.0; frames.len()];
        Channel {
            batch,
            d,
            x: of_frames(&self.inputs.x),
            delta: of_frames(&self.delta),
            y: zeros(),
            dy,
            dx: zeros(),
            ddelta: zeros(),
        }
    }

    /// y of all states: with the skip, and, where it is stored, gated.
    fn finish(&self, channel: &mut Channel, frames: &[Frame], out: &mut [f64]) {
        let Channel { batch, d, x, y, .. } = channel;
        for ((frame, y), x) in frames.iter().zip(y).zip(x) {
            let at = self.at(*batch, frame.t, *d);
            if let Some(skip) = &self.inputs.d {
                *y += skip[*d] * *x;
            }
            out[at] = self.inputs.z.as_ref().map_or(*y, |z| *y * z[at] * sigmoid(z[at]));
        }
    }

    /// The gradients of what a channel's recurrences begin with, and of what is done to y after them.
    fn finish_backward(
        &self,
        channel: &Channel,
        frames: &[Frame],
        output_gradients: &OutputGradients<Vec<f64>>,
        out: &mut Gradients<Vec<f64>>,
    ) {
        let &Channel { batch, d, .. } = channel;
        for (i, frame) in frames.iter().enumerate() {
            let at = self.at(batch, frame.t, d);
            out.x[at] = channel.dx[i];
            out.dt[at] = channel.ddelta[i] * self.delta_derivative[at];
            if let (Some(dd), Some(skip)) = (&mut out.d, &self.inputs.d) {
                dd[d] += channel.dy[i] * channel.x[i];
                out.x[at] += channel.dy[i] * skip[d];
            }
            if let (Some(dz), Some(z)) = (&mut out.z, &self.inputs.z) {
                let s = sigmoid(z[at]);
                dz[at] = output_gradients.dy[at] * channel.y[i] * s * (1.0 + z[at] * (1.0 - s));
            }
        }
    }

    /// λᵢ = w·dyᵢ·conj(Cᵢ) + conj(aᵢ₊₁)λᵢ₊₁, the same from the other end for μ, and the chain rule through the
    /// coefficients. Complex gradients are ∂L/∂Re + i ∂L/∂Im.
    fn backward_state(
        &self,
        channel: &mut Channel,
        n: usize,
        frames: &[Frame],
        recurrence: &Recurrence,
        output_gradients: &OutputGradients<Vec<f64>>,
        out: &mut Gradients<Vec<f64>>,
    ) {
        let p = self.p;
        let Channel { batch, d, x, delta, dy, dx, ddelta, .. } = channel;
        let (batch, d) = (*batch, *d);
        let state = (batch * p.dim + d) * p.state + n;
        let Recurrence { steps, forward, backward, .. } = recurrence;
        let source = |i: usize| {
            let c = self.number(&self.inputs.c, self.projected(p.c, batch, frames[i].t, d, n));
            self.p.weight() * dy[i] * c.conj()
        };
        let mut lambda = match &output_gradients.dfinal_state {
            Some(dfinal) => self.number(dfinal, state),
            None => Complex64::ZERO,
        };
        let mut adjoint = vec![(Complex64::ZERO, Complex64::ZERO); frames.len()];
        for i in (0..frames.len()).rev() {
            lambda += source(i);
            adjoint[i].0 = lambda;
            lambda = if frames[i].reset { Complex64::ZERO } else { steps[i].partials.a.conj() * lambda };
        }
        if let Some(dinitial) = &mut out.initial_state {
            self.accumulate(dinitial, state, lambda);
        }
        if p.bidirectional {
            let mut mu = Complex64::ZERO;
            for i in 0..frames.len() {
                mu += source(i);
                adjoint[i].1 = mu;
                mu = if frames[i].last { Complex64::ZERO } else { steps[i].partials.a.conj() * mu };
            }
        }
        let index = d * p.state + n;
        let a = self.number(&self.inputs.a, index);
        for (i, frame) in frames.iter().enumerate() {
            let (Step { partials, v }, (lambda, mu)) = (&steps[i], adjoint[i]);
            let da = lambda * forward[i].0.conj() + mu * backward[i].0.conj();
            let both = lambda + mu;
            let dg = both * v.conj();
            let dv = both * partials.g.conj();
            let of_slope = da * partials.slope.conj();
            self.accumulate(&mut out.a, index, of_slope * delta[i] + dg * partials.g_a.conj());
            ddelta[i] += (of_slope * a.conj() + dg * partials.g_delta.conj()).re;
            let b = self.projected(p.b, batch, frame.t, d, n);
            dx[i] += (dv * self.number(&self.inputs.b, b).conj()).re;
            self.accumulate(&mut out.b, b, dv * x[i]);
            let c = self.projected(p.c, batch, frame.t, d, n);
            let h = forward[i].1 + backward[i].1;
            self.accumulate(&mut out.c, c, self.p.weight() * dy[i] * h.conj());
        }
    }
}

/// One frame of one recurrence.
struct Step {
    partials: Partials<Complex64>,
    v: Complex64,
}

/// All frames of one recurrence: the states before and after each, in both directions.
struct Recurrence {
    steps: Vec<Step>,
    forward: Vec<(Complex64, Complex64)>,
    backward: Vec<(Complex64, Complex64)>,
    last: Complex64,
}

/// a·h, in real arithmetic where both are real: 0·∞ must not come from imaginary parts that are not there.
fn recur(a: Complex64, h: Complex64) -> Complex64 {
    if a.im == 0.0 && h.im == 0.0 { (a.re * h.re).into() } else { a * h }
}

/// Re(c·h).
fn real_product(c: Complex64, h: Complex64) -> f64 {
    if c.im == 0.0 && h.im == 0.0 { c.re * h.re } else { c.re * h.re - c.im * h.im }
}

/// 1/(1+e⁻ˣ).
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

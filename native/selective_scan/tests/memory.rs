//! How much memory the backward pass takes beside its inputs and outputs.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use selective_scan::{ElementType, Method, Problem, cpu};
use support::random;

/// The system's allocator, which counts.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn backward_takes_a_tenth_of_its_inputs() {
    let plain = random::zoh(2, 2048, 512, 16);
    let poly = Method::Poly;
    let problems = [
        plain.clone(),
        Problem { seq: 8192, batch: 1, ..plain.clone() },
        Problem { element: ElementType::F64, ..plain.clone() },
        Problem { element: ElementType::Bf16, ..plain.clone() },
        Problem { complex: true, ..plain.clone() },
        Problem { method: poly, bidirectional: true, z: true, d: true, ..plain.clone() },
        // A part of the memory is each thread's own, up to half a megabyte whatever the size of the inputs: it shows
        // where chunks are longest, so the inputs of this one are those of a model in use, 38 MB.
        Problem { dim: 1536, method: poly, bidirectional: true, element: ElementType::F16, ..plain },
    ];
    for problem in problems {
        let case = random::case(problem, 1);
        let inputs: usize = case.inputs.iter().map(|(_, bytes)| bytes.len()).sum();
        let inputs = inputs + case.output_gradients.dy.len();
        let mut gradients = case.gradient_buffers(0);
        let before = HELD.load(Relaxed);
        PEAK.store(before, Relaxed);
        let gradients = gradients.as_mut().map(|_, bytes| &mut bytes[..]);
        cpu::backward(&case.problem, case.inputs(), case.output_gradients(), gradients).unwrap();
        let share = (PEAK.load(Relaxed) - before) as f64 / inputs as f64;
        println!("{:5.1}% {}", 100.0 * share, case.name);
        assert!(share < 0.1, "{:.1}% beside the inputs: {}", 100.0 * share, case.name);
    }
}

/// With twice as many states they take more: a chunk is no longer for them.
#[test]
fn boundary_states_take_a_twenty_fourth_of_the_sequences() {
    let plain = random::zoh(1, 8192, 64, 128);
    for (element, states) in [(ElementType::F32, 128), (ElementType::F64, 128), (ElementType::Bf16, 64)] {
        for (complex, bidirectional) in [(false, false), (true, false), (false, true), (true, true)] {
            let state = states / if complex { 2 } else { 1 } / if bidirectional { 2 } else { 1 };
            let problem = Problem { element, complex, bidirectional, state, ..plain.clone() };
            let share =
                |problem: &Problem| cpu::boundary_bytes(problem) as f64 / problem.bytes("x") as f64 / 3.0;
            assert!(share(&problem) <= 1.0 / 24.0, "{problem:?}");
            assert!(share(&Problem { state: 2 * state, ..problem.clone() }) > 1.0 / 24.0, "{problem:?}");
        }
    }
}

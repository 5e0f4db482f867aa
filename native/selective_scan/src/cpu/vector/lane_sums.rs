//! Sums over the lanes of registers.

use super::{Lanes, Real, VectorField};

/// Registers whose lanes are summed at once, at most.
const MOST_SUMS: usize = 4;

/// Sums over lanes, of some registers at once: two registers become one, whose even lanes hold what the first has come to and
/// whose odd lanes what the second has, with a single addition; and so on, by distances of two lanes and more. One register
/// after the other takes three times as many operations.
pub struct LaneSums<F: VectorField> {
    /// Lanes whose number has bit i.
    lanes_of_bit: [<F::Element as Real>::Mask<F::Isa>; MOST_SUMS.ilog2() as usize],
}

impl<F: VectorField> LaneSums<F> {
    #[inline(always)]
    pub fn new(isa: F::Isa) -> Self {
        let half = Lanes::<F::Element, F::Isa>::splat(isa, F::Element::from_f64(0.5));
        let mut lanes_of_bit = [half.less(half); MOST_SUMS.ilog2() as usize];
        for (bit, mask) in lanes_of_bit.iter_mut().enumerate() {
            let mut register = [half.vector];
            let lanes: &mut [F::Element] = bytemuck::cast_slice_mut(&mut register);
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value = F::Element::from_f64((lane >> bit & 1) as f64);
            }
            *mask = half.less(Lanes::new(isa, register[0]));
        }
        Self { lanes_of_bit }
    }

    /// Adds the sums over the lanes of N numbers to `N · COMPONENTS` components, always in the same order.
    #[inline(always)]
    pub fn add<const N: usize>(&self, numbers: [F; N], components: &mut [F::Element]) {
        let lanes = Lanes::<F::Element, F::Isa>::COUNT;
        let mut registers = [numbers[0].component(0); MOST_SUMS];
        let mut count = N * F::COMPONENTS;
        assert!(count <= MOST_SUMS && count.is_power_of_two() && components.len() == count);
        for i in 0..count {
            registers[i] = numbers[i / F::COMPONENTS].component(i % F::COMPONENTS);
        }
        let mut distance = 1;
        for mask in self.lanes_of_bit {
            if distance < lanes && count > 1 {
                count /= 2;
                for i in 0..count {
                    let [even, odd] = [registers[2 * i], registers[2 * i + 1]];
                    registers[i] =
                        Lanes::select(mask, odd, even) + Lanes::select(mask, even, odd).rotated(distance);
                }
                distance *= 2;
            }
        }
        let sums = distance;
        if sums == 1 {
            for (component, register) in components.iter_mut().zip(registers) {
                *component = component.plus(register.sum());
            }
            return;
        }
        while distance < lanes {
            for register in &mut registers[..count] {
                *register = *register + register.rotated(distance);
            }
            distance *= 2;
        }
        for (register, components) in registers.iter().zip(components.chunks_exact_mut(sums)) {
            let register = [register.vector];
            let lanes: &[F::Element] = bytemuck::cast_slice(&register);
            for (component, &sum) in components.iter_mut().zip(lanes) {
                *component = component.plus(sum);
            }
        }
    }
}

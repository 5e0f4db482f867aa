//! The engine that copies tiles between global and shared memory, and the barriers that it reports to. What it is asked for has
//! been done when the instruction ends, so nobody learns here of a copy that is used before it is waited for.

use std::collections::HashMap;

use crate::global::Global;
use crate::shared::{Order, Shared};

/// Dimensions of a tensor.
const MOST_DIMENSIONS: usize = 5;

/// Elements of a box along each dimension.
const LONGEST: u32 = 256;

/// What addresses, the distances of rows, and those of a box are multiples of.
const UNIT: u64 = 16;

/// What a box of shared memory begins at a multiple of.
const BOX_ALIGNMENT: usize = 128;

/// A tensor in global memory, and a box of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap {
    /// Where it begins.
    pub address: u64,
    /// Bytes of an element.
    pub element: usize,
    /// Its elements along each dimension, neighbours first.
    pub shape: Vec<u64>,
    /// Bytes from one to the next along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of the box.
    pub tile: Vec<u32>,
    /// Whether, and within how many bytes, 16 of a box lie where the line of 128 that they are in says.
    pub swizzled: Option<u32>,
}

/// Words of a tensor map: one for what it is and where, and of all dimensions its shape, its strides and its box.
pub const MAP_WORDS: usize = 16;

impl TensorMap {
    /// Whether the driver would make it.
    pub fn is_valid(&self) -> bool {
        let row = u64::from(self.tile[0]) * self.element as u64;
        [2, 4].contains(&self.element)
            && (1..=MOST_DIMENSIONS).contains(&self.shape.len())
            && self.address.is_multiple_of(UNIT)
            && self.shape.iter().all(|&count| (1..=1 << 32).contains(&count))
            && self.strides.iter().all(|&bytes| bytes.is_multiple_of(UNIT) && bytes < 1 << 40)
            && self.tile.iter().all(|count| (1..=LONGEST).contains(count))
            && row.is_multiple_of(UNIT)
            && self.swizzled.is_none_or(|bytes| [64, 128].contains(&bytes) && row <= u64::from(bytes))
    }

    /// As kernels are given it.
    pub fn words(&self) -> [u64; MAP_WORDS] {
        let mut words = [0; MAP_WORDS];
        words[0] = self.address;
        words[1] = self.shape.len() as u64
            | u64::from(self.swizzled.unwrap_or(0)) << 8
            | (self.element as u64) << 16;
        words[2..].iter_mut().zip(&self.shape).for_each(|(word, &count)| *word = count);
        words[7..].iter_mut().zip(&self.strides).for_each(|(word, &bytes)| *word = bytes);
        words[11..].iter_mut().zip(&self.tile).for_each(|(word, &count)| *word = u64::from(count));
        words
    }

    /// The same back.
    pub fn of_words(words: [u64; MAP_WORDS]) -> Result<Self, String> {
        // No dimensions are read as one without elements, which is no map either.
        let rank = ((words[1] & 0xff) as usize).clamp(1, MOST_DIMENSIONS);
        let map = Self {
            address: words[0],
            element: (words[1] >> 16) as usize,
            shape: words[2..][..rank].to_vec(),
            strides: words[7..][..rank - 1].to_vec(),
            tile: words[11..][..rank].iter().map(|&count| count as u32).collect(),
            swizzled: Some((words[1] >> 8 & 0xff) as u32).filter(|&bytes| bytes > 0),
        };
        if map.is_valid() { Ok(map) } else { Err("no tensor map is there".to_owned()) }
    }

    /// Bytes of a box.
    pub fn bytes(&self) -> usize {
        self.tile.iter().product::<u32>() as usize * self.element
    }

    /// For each element of the box that begins at these coordinates: where it lies in shared memory if the box does from
    /// `start` on, and where in global memory if it is one of the tensor's.
    fn elements(&self, start: u64, coordinates: &[i32]) -> impl Iterator<Item = (u64, Option<u64>)> {
        (0..self.bytes() / self.element).map(move |number| {
            let mut rest = number as u32;
            let mut global = Some(self.address);
            for (axis, &count) in self.tile.iter().enumerate() {
                let at = i64::from(coordinates[axis]) + i64::from(rest % count);
                rest /= count;
                let step = if axis == 0 { self.element as u64 } else { self.strides[axis - 1] };
                let here = u64::try_from(at).ok().filter(|&at| at < self.shape[axis]);
                global = global.zip(here).map(|(address, at)| address + at * step);
            }
            let place = start + (number * self.element) as u64;
            // The number of 16 bytes among so many, by that of 128.
            let turns = self.swizzled.map_or(0, |bytes| u64::from(bytes) - UNIT);
            let turned = place ^ (place >> 3 & turns);
            (turned, global)
        })
    }

    /// Brings a box to shared memory.
    pub fn bring(
        &self,
        coordinates: &[i32],
        start: u64,
        global: &mut Global,
        shared: &mut Shared,
    ) -> Result<(), String> {
        self.each(coordinates, start, shared, |element, address| {
            element.fill(0);
            if let Some(address) = address {
                let from = global.source(address, element.len())?;
                // SAFETY: as many bytes are allocated there; nobody else writes to them (warp.rs).
                unsafe { std::ptr::copy_nonoverlapping(from, element.as_mut_ptr(), element.len()) };
            }
            Ok(())
        })
    }

    /// Takes a box away from shared memory: of what is there and an element of it, `combine` makes what will be there. One that begins
    /// before the tensor is not taken away: that is an illegal instruction (H200).
    pub fn take_away(
        &self,
        coordinates: &[i32],
        start: u64,
        global: &mut Global,
        shared: &mut Shared,
        combine: fn(&mut [u8], &[u8]),
    ) -> Result<(), String> {
        if coordinates[..self.tile.len()].iter().any(|&coordinate| coordinate < 0) {
            return Err(format!("a box is taken away that begins before the tensor, at {coordinates:?}"));
        }
        self.each(coordinates, start, shared, |element, address| {
            if let Some(address) = address {
                let there = global.target(address, element.len())?;
                // SAFETY: as many bytes are allocated there, to be written; nobody else does (warp.rs).
                combine(unsafe { std::slice::from_raw_parts_mut(there, element.len()) }, element);
            }
            Ok(())
        })
    }

    /// What is to be done with each element of a box: as it lies in shared memory, and its place in global memory if it is one of
    /// the tensor's.
    fn each(
        &self,
        coordinates: &[i32],
        start: u64,
        shared: &mut Shared,
        mut copy: impl FnMut(&mut [u8], Option<u64>) -> Result<(), String>,
    ) -> Result<(), String> {
        if !start.is_multiple_of(BOX_ALIGNMENT as u64) {
            return Err(format!(
                "a box of shared memory at {start}, which is no multiple of {BOX_ALIGNMENT}"
            ));
        }
        self.elements(start, coordinates)
            .try_for_each(|(place, address)| copy(shared.copied(place, self.element)?, address))
    }
}

/// A box takes the place of what is there.
pub fn replacement(there: &mut [u8], element: &[u8]) {
    there.copy_from_slice(element);
}

/// A box of f32 is added to what is there.
pub fn sum(there: &mut [u8], element: &[u8]) {
    let [before, more] =
        [&*there, element].map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("an f32 has four bytes")));
    there.copy_from_slice(&(before + more).to_ne_bytes());
}

/// A barrier in shared memory.
#[derive(Debug, Default)]
struct Barrier {
    threads: u32,
    missing: u32,
    bytes: i64,
    passed: u64,
    /// What is before those who have arrived, and, of phases that are over, before all who learn that they are.
    arrived: Order,
    released: Order,
}

/// The barriers of a block, by where they lie.
#[derive(Debug, Default)]
pub struct Barriers {
    all: HashMap<u64, Barrier>,
    /// How often anything has changed.
    pub changes: u64,
}

impl Barriers {
    fn at(&mut self, address: u64) -> Result<&mut Barrier, String> {
        self.all.get_mut(&address).ok_or(format!("nobody has made a barrier at {address} of shared memory"))
    }

    /// Makes one for so many threads.
    pub fn begin(&mut self, address: u64, threads: u32) -> Result<(), String> {
        self.changes += 1;
        match self.all.insert(address, Barrier { threads, missing: threads, ..Barrier::default() }) {
            None => Ok(()),
            Some(_) => Err(format!("there is a barrier at {address} of shared memory")),
        }
    }

    /// A thread arrives, and says that so many bytes will; what is before it will be before all who pass.
    pub fn arrive(&mut self, address: u64, bytes: i64, before: &Order) -> Result<(), String> {
        self.changes += 1;
        let barrier = self.at(address)?;
        barrier.arrived.add_all(before);
        barrier.bytes += bytes;
        barrier.missing =
            barrier.missing.checked_sub(1).ok_or("more threads arrive than the phase waits for")?;
        barrier.pass();
        Ok(())
    }

    /// So many bytes arrive.
    pub fn complete(&mut self, address: u64, bytes: i64) -> Result<(), String> {
        self.changes += 1;
        let barrier = self.at(address)?;
        barrier.bytes -= bytes;
        barrier.pass();
        Ok(())
    }

    /// If the phase of this parity is over, what is before all who learn it.
    pub fn passed(&mut self, address: u64, parity: u64) -> Result<Option<&Order>, String> {
        let barrier = self.at(address)?;
        Ok((barrier.passed % 2 != parity).then_some(&barrier.released))
    }
}

impl Barrier {
    fn pass(&mut self) {
        if self.missing == 0 && self.bytes == 0 {
            self.passed += 1;
            self.missing = self.threads;
            self.released.add_all(&self.arrived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TensorMap, replacement, sum};
    use crate::global::{self, Global, Home};
    use crate::shared::Shared;

    #[test]
    fn boxes_are_copied() {
        // {frames: 3, channels: 8}, of which a box has {4, 4}, in rows of 16 bytes.
        let mut numbers = Vec::from_iter(0..24u32);
        let start = numbers.as_mut_ptr().expose_provenance();
        global::add(start, 24 * 4, Home::Device);
        let map = TensorMap {
            address: start as u64,
            element: 4,
            shape: vec![8, 3],
            strides: vec![32],
            tile: vec![4, 4],
            swizzled: None,
        };
        assert_eq!(TensorMap::of_words(map.words()).as_ref(), Ok(&map));
        let (mut global, mut shared) = (Global::default(), Shared::new(256, 1));
        map.bring(&[6, -1], 128, &mut global, &mut shared).unwrap();
        let brought: Vec<u8> = shared.copied(128, 64).unwrap().iter().copied().step_by(4).collect();
        assert_eq!(brought, [0, 0, 0, 0, 6, 7, 0, 0, 14, 15, 0, 0, 22, 23, 0, 0]);
        // What lies beyond the tensor is left alone.
        map.take_away(&[0, 2], 128, &mut global, &mut shared, replacement).unwrap();
        assert_eq!(numbers[16..], [0, 0, 0, 0, 20, 21, 22, 23]);
        // And what is added is added to what is there: 20 to 0 as f32, and 1 to 1.
        let one = 1f32.to_bits();
        numbers[8..10].copy_from_slice(&[one, 0]);
        shared.copied(128, 64).unwrap()[..8].copy_from_slice(&[one, one].map(u32::to_ne_bytes).concat());
        map.take_away(&[0, 1], 128, &mut global, &mut shared, sum).unwrap();
        assert_eq!(numbers[8..10], [2f32.to_bits(), one]);
        let words = map.take_away(&[0, 2], 64, &mut global, &mut shared, replacement).unwrap_err();
        assert!(words.contains("no multiple of 128"), "{words}");
        let words = map.take_away(&[0, -1], 128, &mut global, &mut shared, replacement).unwrap_err();
        assert!(words.contains("begins before the tensor"), "{words}");
        // Elements of two bytes: {frames: 6, channels: 8} of them, the low and the high half of each number in turn.
        let halves = TensorMap { element: 2, shape: vec![8, 6], strides: vec![16], tile: vec![8, 2], ..map };
        assert_eq!(TensorMap::of_words(halves.words()).as_ref(), Ok(&halves));
        halves.bring(&[0, 5], 128, &mut global, &mut shared).unwrap();
        let brought: Vec<u8> = shared.copied(128, 32).unwrap().iter().copied().step_by(2).collect();
        assert_eq!(brought, [20, 0, 21, 0, 22, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        global::remove(start, Home::Device);
    }

    #[test]
    fn boxes_are_swizzled() {
        let map = TensorMap {
            address: 0,
            element: 4,
            shape: vec![32, 8],
            strides: vec![128],
            tile: vec![32, 8],
            swizzled: Some(128),
        };
        let places: Vec<u64> = map.elements(1024, &[0, 0]).map(|(place, _)| place).collect();
        // Of row r, the pack of four elements p lies at p ^ r.
        let place = |number: u64| {
            1024 + number / 32 * 128 + ((number % 32 / 4) ^ (number / 32)) * 16 + number % 4 * 4
        };
        assert_eq!(places, Vec::from_iter((0..256).map(place)));
        // Of rows of 64 bytes two share a line, which has four places.
        let map = TensorMap { tile: vec![16, 16], swizzled: Some(64), ..map };
        let places: Vec<u64> = map.elements(1024, &[0, 0]).map(|(place, _)| place).collect();
        let place = |number: u64| {
            1024 + number / 16 * 64 + ((number % 16 / 4) ^ (number / 32 % 4)) * 16 + number % 4 * 4
        };
        assert_eq!(places, Vec::from_iter((0..256).map(place)));
    }

    #[test]
    fn a_map_is_refused_that_the_driver_would_refuse() {
        let map = |shape: [u64; 2], strides, address| TensorMap {
            address,
            element: 4,
            shape: shape.to_vec(),
            strides: vec![strides],
            tile: vec![32, 8],
            swizzled: Some(128),
        };
        assert!(map([30, 8], 128, 4096).is_valid());
        assert!(!map([30, 8], 120, 4096).is_valid(), "rows of 120 bytes");
        assert!(!map([30, 8], 128, 4100).is_valid(), "an address of 4 bytes");
        assert!(!map([0, 8], 128, 4096).is_valid(), "nothing");
        let wide = TensorMap { swizzled: Some(64), ..map([30, 8], 128, 4096) };
        assert!(!wide.is_valid(), "rows of 128 bytes, swizzled within 64");
    }
}

//! 32 threads that execute instructions together.
//!
//! Threads of a warp that branch apart are fragments, each with its place in the code. The one that has come least far
//! goes on until it meets another, so that they come together again where the branches do. Where threads must meet, a
//! fragment waits for the others.

use crate::arithmetic::low;
use crate::engine::{Barriers, MAP_WORDS, TensorMap, replacement, sum};
use crate::global::Global;
use crate::launch::Launch;
use crate::module::{
    Address, Instruction, LANES, Lanes, MOST_ELEMENTS, Operand, Operation, Reduction, Shuffle, Space,
    Special, TileCopy,
};
use crate::shared::{Order, Shared, Who};

/// Threads that are at the same place.
#[derive(Debug, Clone)]
struct Fragment {
    at: usize,
    lanes: u32,
    /// Where calls return to.
    returns: Vec<usize>,
    waits: bool,
}

/// Why a warp stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// All of its threads that are left wait for the block.
    Barrier,
    /// A barrier in shared memory has not been passed, or what is waited for not been written: others go first.
    Unpassed,
    /// There are no more.
    End,
}

/// A warp of a block.
#[derive(Debug)]
pub struct Warp {
    number: usize,
    registers: Vec<Lanes>,
    carry: [bool; LANES],
    local: Vec<u8>,
    fragments: Vec<Fragment>,
    global: Global,
    moment: u32,
    block_moment: u32,
    /// What is before all that the warp does, and what will be once its threads meet: some of them alone have learnt it.
    before: Order,
    learnt: Order,
    /// Where it has last looked for what others write, and what it found there.
    seen: Option<[Lanes; 2]>,
}

/// What a warp works with beside itself.
pub struct Around<'a> {
    /// The launch that it belongs to.
    pub launch: &'a Launch<'a>,
    /// The block's number along each axis of the grid.
    pub block: [u32; 3],
    /// The block's memory.
    pub shared: &'a mut Shared,
    /// Barriers that lie there.
    pub barriers: &'a mut Barriers,
}

impl Warp {
    /// A warp before its first instruction.
    pub fn new(number: usize, launch: &Launch<'_>) -> Self {
        Self {
            number,
            registers: vec![[0; LANES]; launch.module.registers],
            carry: [false; LANES],
            local: vec![0; launch.module.local_bytes * LANES],
            fragments: Vec::new(),
            global: Global::default(),
            moment: 0,
            block_moment: 0,
            before: Order::default(),
            learnt: Order::default(),
            seen: None,
        }
    }

    /// Puts the warp to the beginning, for the next block. What nobody wrote is no number.
    pub fn restart(&mut self, launch: &Launch<'_>) {
        let threads = (launch.threads - self.number * LANES).min(LANES);
        let lanes = u32::MAX >> (LANES - threads);
        self.fragments = vec![Fragment { at: launch.kernel.start, lanes, returns: Vec::new(), waits: false }];
        (self.moment, self.block_moment) = (0, 0);
        (self.before, self.learnt) = Default::default();
        self.seen = None;
        self.registers.fill([u64::MAX; LANES]);
        for (&value, &register) in &launch.module.constants {
            self.registers[register as usize] = [value; LANES];
        }
        self.carry = [false; LANES];
        self.local.fill(0xff);
    }

    /// Threads that have not ended.
    fn living(&self) -> u32 {
        self.fragments.iter().fold(0, |lanes, fragment| lanes | fragment.lanes)
    }

    /// Executes instructions until the warp has to wait or ends, or says what went wrong and where.
    pub fn run(&mut self, around: &mut Around<'_>) -> Result<Stop, String> {
        let module = around.launch.module;
        loop {
            let ready = self.fragments.iter().enumerate().filter(|(_, fragment)| !fragment.waits);
            let Some((turn, _)) = ready.min_by_key(|(_, fragment)| fragment.at) else {
                if self.fragments.is_empty() {
                    return Ok(Stop::End);
                }
                if self.meet_apart(&module.code)? {
                    continue;
                }
                let waits = |fragment: &Fragment| {
                    format!("lanes {:#x} at {}", fragment.lanes, module.quote(fragment.at))
                };
                let all: Vec<_> = self.fragments.iter().map(waits).collect();
                return Err(format!("threads wait for one another at different places: {}", all.join("; ")));
            };
            let at = self.fragments[turn].at;
            match self.step(turn, &module.code[at], around) {
                Ok(Some(stop)) => return Ok(stop),
                Ok(None) => {}
                Err(reason) => return Err(format!("{}: {reason}", module.quote(at))),
            }
            if self.fragments.len() > 1 {
                self.join();
            }
        }
    }

    /// Makes one of fragments that have come to the same place.
    fn join(&mut self) {
        let mut joined: Vec<Fragment> = Vec::with_capacity(self.fragments.len());
        for fragment in self.fragments.drain(..) {
            let same = |other: &&mut Fragment| other.at == fragment.at && other.returns == fragment.returns;
            match joined.iter_mut().find(same) {
                Some(other) => {
                    other.lanes |= fragment.lanes;
                    other.waits = false;
                }
                None => joined.push(fragment),
            }
        }
        self.fragments = joined;
    }

    fn operand(&self, operand: Operand) -> Lanes {
        match operand {
            Operand::Register(register) => self.registers[register as usize],
            Operand::Not(register) => self.registers[register as usize].map(|value| value ^ 1),
            Operand::Constant(value) => [value; LANES],
        }
    }

    fn lanes_where(&self, operand: Operand) -> u32 {
        self.operand(operand)
            .iter()
            .enumerate()
            .fold(0, |lanes, (lane, value)| lanes | ((*value & 1) as u32) << lane)
    }

    fn set(&mut self, to: u32, lanes: u32, values: &Lanes) {
        let register = &mut self.registers[to as usize];
        for (lane, (register, value)) in register.iter_mut().zip(values).enumerate() {
            *register = if lanes >> lane & 1 == 1 { *value } else { *register };
        }
    }

    /// Executes an instruction for a fragment; whether the whole warp has come to a barrier of the block, or waits for one in
    /// shared memory, or for what others write.
    fn step(
        &mut self,
        turn: usize,
        instruction: &Instruction,
        around: &mut Around<'_>,
    ) -> Result<Option<Stop>, String> {
        let all = self.fragments[turn].lanes;
        let lanes = instruction.guard.map_or(all, |guard| all & self.lanes_where(guard));
        match &instruction.operation {
            Operation::Branch { to } => {
                let fragment = &mut self.fragments[turn];
                if lanes == all {
                    fragment.at = *to;
                    return Ok(None);
                }
                if lanes != 0 {
                    fragment.lanes &= !lanes;
                    let other = Fragment { at: *to, lanes, returns: fragment.returns.clone(), waits: false };
                    self.fragments.push(other);
                }
            }
            Operation::Call { start } => {
                let fragment = &mut self.fragments[turn];
                fragment.returns.push(fragment.at + 1);
                fragment.at = *start;
                return Ok(None);
            }
            Operation::Return if lanes != 0 => {
                let fragment = &mut self.fragments[turn];
                match (lanes == all).then(|| fragment.returns.pop()).flatten() {
                    Some(back) => {
                        fragment.at = back;
                        return Ok(None);
                    }
                    None if !fragment.returns.is_empty() => {
                        return Err("some lanes return from a function before others".to_owned());
                    }
                    None => fragment.lanes &= !lanes,
                }
                if lanes == all {
                    self.fragments.swap_remove(turn);
                    // Nobody waits for those that have ended.
                    for fragment in &mut self.fragments {
                        fragment.waits = false;
                    }
                    return Ok(None);
                }
            }
            Operation::Shuffle { .. } | Operation::Vote { .. } | Operation::WarpBarrier { .. } => {
                let met = self.meet(&[(turn, lanes)], &around.launch.module.code)?;
                self.fragments[turn].waits = !met;
                return Ok(None);
            }
            Operation::BlockBarrier { .. } if lanes != 0 => {
                let is_whole = lanes == self.living();
                self.fragments[turn].waits = !is_whole;
                return Ok(is_whole.then_some(Stop::Barrier));
            }
            Operation::HasPassed { to, barrier, parity } => {
                let (places, parities) = (self.places(barrier), self.operand(*parity));
                let mut passed = [0; LANES];
                let by_all = lanes == self.living();
                for lane in numbers(lanes) {
                    let parity = parities[lane] & 0xffff_ffff;
                    if let Some(order) = around.barriers.passed(places[lane], parity)? {
                        passed[lane] = 1;
                        if by_all { &mut self.before } else { &mut self.learnt }.add_all(order);
                    }
                }
                self.set(*to, lanes, &passed);
                self.fragments[turn].at += 1;
                return Ok(numbers(lanes).any(|lane| passed[lane] == 0).then_some(Stop::Unpassed));
            }
            operation @ Operation::Load { address, to, acquires: true, .. } if lanes != 0 => {
                let places = self.places(address);
                self.execute(lanes, operation, around)?;
                self.fragments[turn].at += 1;
                let seen = Some([places, self.registers[to[0] as usize]]);
                let is_as_before = self.seen == seen;
                self.seen = seen;
                return Ok(is_as_before.then_some(Stop::Unpassed));
            }
            operation => self.execute(lanes, operation, around)?,
        }
        self.fragments[turn].at += 1;
        Ok(None)
    }

    /// Executes, for these lanes, what each does for itself.
    fn execute(&mut self, lanes: u32, operation: &Operation, around: &mut Around<'_>) -> Result<(), String> {
        match operation {
            Operation::Compute { compute, to, from } => {
                let values = compute(from.map(|register| &self.registers[register as usize]));
                self.set(*to, lanes, &values);
            }
            Operation::ComputeWithCarry { compute, to, from, keeps } => {
                let [a, b, c, d] = from.map(|operand| self.operand(operand));
                for lane in numbers(lanes) {
                    let (value, carry) = compute([a[lane], b[lane], c[lane], d[lane]], self.carry[lane]);
                    self.registers[*to as usize][lane] = value;
                    if *keeps {
                        self.carry[lane] = carry;
                    }
                }
            }
            Operation::Special { special, to } => {
                let values = std::array::from_fn(|lane| u64::from(self.special(*special, lane, around)));
                self.set(*to, lanes, &values);
            }
            Operation::Pack { to, from, bits } => {
                let mut values = [0; LANES];
                for (part, operand) in (0..).zip(from) {
                    let part_values = self.operand(*operand);
                    for (value, part_value) in values.iter_mut().zip(part_values) {
                        *value |= (part_value & low(*bits)) << (part * bits);
                    }
                }
                self.set(*to, lanes, &values);
            }
            Operation::Unpack { to, from, bits } => {
                let values = self.operand(*from);
                for (part, register) in (0..).zip(to) {
                    if let Some(register) = register {
                        self.set(*register, lanes, &values.map(|value| value >> (part * bits) & low(*bits)));
                    }
                }
            }
            Operation::Load { address, to, bytes, extend, .. } => {
                let places = self.places(address);
                let mut loaded = [[0; LANES]; MOST_ELEMENTS];
                let length = bytes * to.len();
                for lane in numbers(lanes) {
                    let there = self.read(address.space, places[lane], lane, length, around)?;
                    for (values, part) in loaded.iter_mut().zip(there.chunks_exact(*bytes)) {
                        values[lane] = word(part);
                    }
                }
                for (&register, values) in to.iter().zip(loaded) {
                    self.set(register, lanes, &extend([&values; 4]));
                }
            }
            Operation::Store { address, from, bytes } => {
                let places = self.places(address);
                let values: Vec<Lanes> = from.iter().map(|operand| self.operand(*operand)).collect();
                for lane in numbers(lanes) {
                    let mut buffer = [0; 32];
                    for (part, values) in buffer.chunks_exact_mut(*bytes).zip(&values) {
                        part.copy_from_slice(&values[lane].to_le_bytes()[..*bytes]);
                    }
                    self.write(address.space, places[lane], lane, &buffer[..bytes * values.len()], around)?;
                }
            }
            Operation::Atomic { address, to, from, bytes, combine } => {
                let places = self.places(address);
                let values: Vec<Lanes> = from.iter().map(|operand| self.operand(*operand)).collect();
                for lane in numbers(lanes) {
                    if address.space == Space::Global {
                        self.global.target(places[lane], bytes * values.len())?;
                    }
                    for (place, values) in (places[lane]..).step_by(*bytes).zip(&values) {
                        let mut before = 0;
                        let mut update = |there: &[u8]| {
                            before = word(there);
                            let operands = [before, values[lane]].map(|value| [value; LANES]);
                            combine([&operands[0], &operands[1], &operands[1], &operands[1]])[0].to_le_bytes()
                        };
                        match address.space {
                            Space::Shared => {
                                around.shared.update(self.who(lane), &self.before, place, *bytes, update)?
                            }
                            space => {
                                let after = update(self.read(space, place, lane, *bytes, around)?);
                                self.write(space, place, lane, &after[..*bytes], around)?;
                            }
                        }
                        if let Some(register) = to {
                            self.registers[*register as usize][lane] = before;
                        }
                    }
                }
            }
            Operation::BeginBarrier { barrier, threads } => {
                let (places, threads) = (self.places(barrier), self.operand(*threads));
                for lane in numbers(lanes) {
                    around.barriers.begin(places[lane], threads[lane] as u32)?;
                }
            }
            Operation::Arrive { barrier, bytes } => {
                let (places, bytes) = (self.places(barrier), self.operand(*bytes));
                // What the warp's threads have done since they met last is not ordered before one of them.
                let mut before = self.before.clone();
                before.add(self.number, self.moment);
                for lane in numbers(lanes) {
                    around.barriers.arrive(places[lane], i64::from(bytes[lane] as u32), &before)?;
                }
            }
            Operation::CopyTile { shared, map, coordinates, copy } => {
                let (starts, maps) = (self.places(shared), self.places(map));
                let coordinates: Vec<Lanes> =
                    coordinates.iter().map(|operand| self.operand(*operand)).collect();
                let barriers = match copy {
                    TileCopy::Bring(barrier) => self.places(barrier),
                    TileCopy::TakeAway | TileCopy::Add => Lanes::default(),
                };
                for lane in numbers(lanes) {
                    let mut words = [0; MAP_WORDS];
                    for (place, word_of_map) in (maps[lane]..).step_by(8).zip(&mut words) {
                        *word_of_map = word(self.read(Space::Parameters, place, lane, 8, around)?);
                    }
                    let map = TensorMap::of_words(words)?;
                    let first: Vec<i32> = coordinates.iter().map(|values| values[lane] as i32).collect();
                    if first.len() != map.shape.len() {
                        return Err(format!("{} coordinates of {:?}", first.len(), map.shape));
                    }
                    let Around { shared, .. } = around;
                    match copy {
                        TileCopy::Bring(_) => {
                            map.bring(&first, starts[lane], &mut self.global, shared)?;
                            around.barriers.complete(barriers[lane], map.bytes() as i64)?;
                        }
                        TileCopy::TakeAway => {
                            map.take_away(&first, starts[lane], &mut self.global, shared, replacement)?
                        }
                        TileCopy::Add => {
                            map.take_away(&first, starts[lane], &mut self.global, shared, sum)?
                        }
                    }
                }
            }
            Operation::Copy { from, to, bytes } => {
                let size = around.launch.module.local_bytes;
                for lane in numbers(lanes) {
                    let start = lane * size;
                    self.local.copy_within(start + from..start + from + bytes, start + to);
                }
            }
            // Nothing, and what fragments do.
            _ => {}
        }
        Ok(())
    }

    /// Threads may meet at different instructions, if these ask for the same: compilers make branches of such. So where
    /// none can go on alone, those go on that wait for the same; whether there are such.
    fn meet_apart(&mut self, code: &[Instruction]) -> Result<bool, String> {
        for first in 0..self.fragments.len() {
            let wants = |fragment: &Fragment| meeting(&code[fragment.at].operation);
            let wanted = wants(&self.fragments[first]);
            let executing = |fragment: &Fragment| {
                code[fragment.at]
                    .guard
                    .map_or(fragment.lanes, |guard| fragment.lanes & self.lanes_where(guard))
            };
            let same = |(turn, fragment): (usize, &Fragment)| {
                (wants(fragment) == wanted).then_some((turn, executing(fragment)))
            };
            let group: Vec<_> = self.fragments.iter().enumerate().filter_map(same).collect();
            if wanted.is_some() && self.meet(&group, code)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Executes what fragments, with the lanes that do, meet for, if no lane is missing; whether it has been executed.
    fn meet(&mut self, group: &[(usize, u32)], code: &[Instruction]) -> Result<bool, String> {
        let here = group.iter().fold(0, |all, (_, lanes)| all | lanes);
        let mut values = [0; LANES];
        for &(turn, lanes) in group {
            let (from, members, is_barrier) = match code[self.fragments[turn].at].operation {
                Operation::Shuffle { from, members, .. } | Operation::Vote { from, members, .. } => {
                    (from, members, false)
                }
                Operation::WarpBarrier { members } => (Operand::Constant(0), members, true),
                _ => return Ok(false),
            };
            let [from, members] = [from, members].map(|operand| self.operand(operand));
            for lane in numbers(lanes) {
                values[lane] = from[lane];
                let members = members[lane] as u32;
                if members & self.living() & !here != 0 {
                    return Ok(false);
                }
                if here & !members != 0 {
                    return Err(format!(
                        "lanes {here:#x} meet, of whom lane {lane} wants to meet {members:#x} alone"
                    ));
                }
                if is_barrier && here != self.living() {
                    return Err("barriers of some lanes of a warp are not known here".to_owned());
                }
            }
        }
        let votes = numbers(here).fold(0, |votes, lane| votes | (values[lane] as u32 & 1) << lane);
        let union = numbers(here).fold(0, |union, lane| union | values[lane] as u32);
        for &(turn, lanes) in group {
            match code[self.fragments[turn].at].operation {
                Operation::Shuffle { shuffle, to, is_valid, by, limits, .. } => {
                    let [by, limits] = [by, limits].map(|operand| self.operand(operand));
                    let sources: [(usize, bool); LANES] = std::array::from_fn(|lane| {
                        source(shuffle, lane, by[lane] as u32, limits[lane] as u32)
                    });
                    if let Some(lane) = numbers(lanes).find(|&lane| here >> sources[lane].0 & 1 == 0) {
                        let from = sources[lane].0;
                        return Err(format!("lane {lane} takes a value of lane {from}, which gives none"));
                    }
                    self.set(to, lanes, &sources.map(|(source, _)| values[source]));
                    if let Some(register) = is_valid {
                        self.set(register, lanes, &sources.map(|(_, valid)| u64::from(valid)));
                    }
                }
                Operation::Vote { reduction, to, .. } => {
                    let lowest = votes.trailing_zeros() as usize;
                    let values = match reduction {
                        Reduction::All => [u64::from(votes == here); LANES],
                        Reduction::Any => [u64::from(votes != 0); LANES],
                        Reduction::Ballot => [u64::from(votes); LANES],
                        Reduction::Or => [u64::from(union); LANES],
                        Reduction::Lowest => std::array::from_fn(|lane| u64::from(lane == lowest)),
                    };
                    self.set(to, lanes, &values);
                }
                _ => self.meet_again(),
            }
            let fragment = &mut self.fragments[turn];
            fragment.at += 1;
            fragment.waits = false;
        }
        Ok(true)
    }

    /// What the warp brings to the barrier that it waits at: whether it is a reduction, and of its threads how many there
    /// are and for which of them the predicate holds.
    pub fn brings(&self, launch: &Launch<'_>) -> (Option<Reduction>, u32, u32) {
        let Some(fragment) = self.fragments.first() else { return (None, 0, 0) };
        match launch.module.code[fragment.at].operation {
            Operation::BlockBarrier { reduction: Some((reduction, _, from)) } => {
                (Some(reduction), fragment.lanes, self.lanes_where(from) & fragment.lanes)
            }
            _ => (None, fragment.lanes, 0),
        }
    }

    /// Goes on behind the barrier, with what the block's reduction gave.
    pub fn pass(&mut self, launch: &Launch<'_>, reduced: bool) {
        let Some(fragment) = self.fragments.first() else { return };
        let (at, lanes) = (fragment.at, fragment.lanes);
        if let Operation::BlockBarrier { reduction: Some((_, to, _)) } = launch.module.code[at].operation {
            self.set(to, lanes, &[u64::from(reduced); LANES]);
        }
        self.fragments[0].at += 1;
        self.block_moment += 1;
        self.meet_again();
    }

    /// All threads of the warp go on together.
    fn meet_again(&mut self) {
        self.moment += 1;
        self.before.add_all(&std::mem::take(&mut self.learnt));
    }

    fn special(&self, special: Special, lane: usize, around: &Around<'_>) -> u32 {
        let Launch { threads, grid, .. } = around.launch;
        match special {
            Special::TidX => (self.number * LANES + lane) as u32,
            Special::NtidX => *threads as u32,
            Special::CtaidX => around.block[0],
            Special::CtaidY => around.block[1],
            Special::CtaidZ => around.block[2],
            Special::NctaidX => grid[0],
            Special::NctaidY => grid[1],
            Special::NctaidZ => grid[2],
            Special::Laneid => lane as u32,
            Special::Zero => 0,
            Special::One => 1,
        }
    }

    fn places(&self, address: &Address) -> Lanes {
        self.operand(address.base).map(|base| base.wrapping_add_signed(address.offset))
    }

    fn who(&self, lane: usize) -> Who {
        let thread = (self.number * LANES + lane) as u32;
        Who::new(thread, self.block_moment, self.moment)
    }

    fn read<'a>(
        &'a mut self,
        space: Space,
        place: u64,
        lane: usize,
        bytes: usize,
        around: &'a mut Around<'_>,
    ) -> Result<&'a [u8], String> {
        match space {
            Space::Global => {
                let from = self.global.source(place, bytes)?;
                // SAFETY: as many bytes are allocated there, and were written when they were. Nobody else writes to them: blocks
                // run one after the other, and kernels of other streams are kept apart by who launches them, as on a device.
                Ok(unsafe { std::slice::from_raw_parts(from, bytes) })
            }
            Space::Shared => around.shared.read(self.who(lane), &self.before, place, bytes),
            Space::Local => Ok(self.local(place, lane, bytes, around)?),
            Space::Parameters => {
                let at = place as usize;
                let from = around.launch.parameters.get(at..at + bytes);
                from.ok_or_else(|| format!("{bytes} bytes of parameters at {at}"))
            }
        }
    }

    fn write(
        &mut self,
        space: Space,
        place: u64,
        lane: usize,
        from: &[u8],
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        match space {
            Space::Global => {
                let to = self.global.target(place, from.len())?;
                // SAFETY: as for reading; a module's variables are no targets.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            }
            Space::Shared => around.shared.write(self.who(lane), &self.before, place, from)?,
            Space::Local => self.local(place, lane, from.len(), around)?.copy_from_slice(from),
            Space::Parameters => return Err("parameters of a kernel cannot be written".to_owned()),
        }
        Ok(())
    }

    fn local(
        &mut self,
        place: u64,
        lane: usize,
        bytes: usize,
        around: &Around<'_>,
    ) -> Result<&mut [u8], String> {
        let size = around.launch.module.local_bytes;
        let at = place as usize;
        match at.checked_add(bytes).filter(|&end| end <= size) {
            Some(end) => Ok(&mut self.local[lane * size + at..lane * size + end]),
            None => Err(format!("{bytes} bytes of local memory at {at}, of {size} that there are")),
        }
    }
}

/// What threads of a warp meet for: that of an instruction, so that two can be compared.
#[derive(Debug, PartialEq)]
enum Meeting {
    Shuffle(Shuffle),
    Vote(Reduction),
    Barrier,
}

fn meeting(operation: &Operation) -> Option<Meeting> {
    match operation {
        Operation::Shuffle { shuffle, .. } => Some(Meeting::Shuffle(*shuffle)),
        Operation::Vote { reduction, .. } => Some(Meeting::Vote(*reduction)),
        Operation::WarpBarrier { .. } => Some(Meeting::Barrier),
        _ => None,
    }
}

/// The numbers of the lanes of a set.
fn numbers(lanes: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| lanes >> lane & 1 == 1)
}

fn word(bytes: &[u8]) -> u64 {
    match bytes {
        &[a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// The lane that another takes a value of, and whether it lies in its own segment; one that does not takes its own value.
fn source(shuffle: Shuffle, lane: usize, by: u32, limits: u32) -> (usize, bool) {
    let lane = lane as u32;
    let (by, clamp, segment) = (by & 31, limits & 31, limits >> 8 & 31);
    let last = lane & segment | clamp & !segment;
    let first = lane & segment;
    let (source, is_valid) = match shuffle {
        Shuffle::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= last as i32),
        Shuffle::Down => (lane + by, lane + by <= last),
        Shuffle::Bfly => (lane ^ by, lane ^ by <= last),
        Shuffle::Idx => (first | by & !segment, first | by & !segment <= last),
    };
    (if is_valid { source } else { lane } as usize, is_valid)
}

//! What a module of PTX is to the interpreter.

use std::collections::HashMap;

/// Threads of a warp.
pub const LANES: usize = 32;

/// Numbers that one access can read or write.
pub const MOST_ELEMENTS: usize = 8;

/// A register of a warp, or any 64 bits for each of its threads.
pub type Lanes = [u64; LANES];

/// A module: its kernels, and the variables in global memory that they share.
#[derive(Debug)]
pub struct Module {
    /// What was read.
    pub text: String,
    /// The architecture that the text was made for, 90 for sm_90.
    pub target: i32,
    /// Those that can be launched.
    pub kernels: Vec<Kernel>,
    /// All functions' instructions, one after the other.
    pub code: Vec<Instruction>,
    /// Registers of all functions: no two have one in common, and none calls itself.
    pub registers: usize,
    /// Registers that hold a number from beginning to end: those that computations name.
    pub constants: HashMap<u64, u32>,
    /// Local memory of a thread, for all functions together: variables, and what they are called with.
    pub local_bytes: usize,
    /// Shared memory that the module's variables take; what a launch asks for besides begins behind them.
    pub shared_bytes: usize,
    /// What variables in global memory hold.
    pub variables: Vec<Box<[u64]>>,
}

impl Module {
    /// The register that holds a number from beginning to end.
    pub fn constant(&mut self, value: u64) -> u32 {
        *self.constants.entry(value).or_insert_with(|| {
            self.registers += 1;
            self.registers as u32 - 1
        })
    }

    /// An instruction as it is written, with its line.
    pub fn quote(&self, at: usize) -> String {
        let line = self.code[at].line;
        let text = self.text.lines().nth(line as usize - 1).unwrap_or("");
        format!("line {line} of the PTX, {}", text.trim())
    }
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Where it begins in the module's code.
    pub start: usize,
    /// Where each of its parameters lies, and its bytes.
    pub parameters: Vec<(usize, usize)>,
    /// Threads that a block has at most (.maxntid), if it says so.
    pub most_threads: Option<usize>,
    /// Blocks that it wants to share a multiprocessor (.minnctapersm), if it says so.
    pub min_blocks: Option<usize>,
}

/// An instruction and the predicate that it is executed under.
#[derive(Debug)]
pub struct Instruction {
    /// The lanes that execute it are those where this is true.
    pub guard: Option<Operand>,
    /// What it does.
    pub operation: Operation,
    /// The line of the text that it stands in.
    pub line: u32,
}

/// What an instruction reads: 64 bits, of which it takes as many as its type has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A register's.
    Register(u32),
    /// The opposite of a predicate's.
    Not(u32),
    /// These.
    Constant(u64),
}

/// A memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Of all blocks; its addresses are this process's own.
    Global,
    /// Of a block.
    Shared,
    /// Of a thread.
    Local,
    /// What the kernel was launched with.
    Parameters,
}

/// A place in a memory.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    /// The memory.
    pub space: Space,
    /// Where counting begins.
    pub base: Operand,
    /// Bytes from there.
    pub offset: i64,
}

/// What a thread can ask about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they have the names that PTX gives them")]
pub enum Special {
    TidX,
    NtidX,
    CtaidX,
    CtaidY,
    CtaidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    Laneid,
    /// The second and third of a dimension that has but one.
    Zero,
    /// How many there are in such a dimension.
    One,
}

/// How a value finds its way from lane to lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they have the names that PTX gives them")]
pub enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

/// What becomes of a predicate of many threads, or of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they have the names that PTX gives them")]
pub enum Reduction {
    All,
    Any,
    Ballot,
    Or,
    /// Whether a lane is the lowest of those that say so.
    Lowest,
}

/// A function of every lane's operands; those that it has no use for are zero.
pub type Compute = fn([&Lanes; 4]) -> Lanes;

/// A function of one lane's operands and a carry, with the carry that comes of it.
pub type ComputeWithCarry = fn([u64; 4], bool) -> (u64, bool);

/// What an instruction does.
#[derive(Debug)]
#[allow(missing_docs, reason = "the interpreter says what each does with its fields")]
pub enum Operation {
    Compute {
        compute: Compute,
        to: u32,
        from: [u32; 4],
    },
    /// `keeps` says whether the carry is kept for instructions that follow.
    ComputeWithCarry {
        compute: ComputeWithCarry,
        to: u32,
        from: [Operand; 4],
        keeps: bool,
    },
    Special {
        special: Special,
        to: u32,
    },
    Pack {
        to: u32,
        from: Vec<Operand>,
        bits: u32,
    },
    Unpack {
        to: Vec<Option<u32>>,
        from: Operand,
        bits: u32,
    },
    /// `extend` makes a register's 64 bits of as many bytes as are read for each; `acquires`: others may be about to write them.
    Load {
        address: Address,
        to: Vec<u32>,
        bytes: usize,
        extend: Compute,
        acquires: bool,
    },
    Store {
        address: Address,
        from: Vec<Operand>,
        bytes: usize,
    },
    /// Reads, combines with `from` and writes, one lane after the other; `to` gets what was there before.
    Atomic {
        address: Address,
        to: Option<u32>,
        from: Vec<Operand>,
        bytes: usize,
        combine: Compute,
    },
    Copy {
        from: usize,
        to: usize,
        bytes: usize,
    },
    Branch {
        to: usize,
    },
    Call {
        start: usize,
    },
    Return,
    Shuffle {
        shuffle: Shuffle,
        to: u32,
        is_valid: Option<u32>,
        from: Operand,
        by: Operand,
        limits: Operand,
        members: Operand,
    },
    Vote {
        reduction: Reduction,
        to: u32,
        from: Operand,
        members: Operand,
    },
    WarpBarrier {
        members: Operand,
    },
    BlockBarrier {
        reduction: Option<(Reduction, u32, Operand)>,
    },
    /// Makes a barrier in shared memory.
    BeginBarrier {
        barrier: Address,
        threads: Operand,
    },
    /// Arrives at one, and announces bytes.
    Arrive {
        barrier: Address,
        bytes: Operand,
    },
    /// Whether one has been passed; who learns that it has not goes on when others have done what they can.
    HasPassed {
        to: u32,
        barrier: Address,
        parity: Operand,
    },
    /// Copies a box of a tensor.
    CopyTile {
        shared: Address,
        map: Address,
        coordinates: Vec<Operand>,
        copy: TileCopy,
    },
    /// What has no effect where nothing overlaps and nothing is cached.
    Nothing,
}

/// What is done with a box of a tensor.
#[derive(Debug, Clone)]
pub enum TileCopy {
    /// It is brought to shared memory, and a barrier there is told.
    Bring(Address),
    /// It is taken away from shared memory.
    TakeAway,
    /// It is added to what is there.
    Add,
}

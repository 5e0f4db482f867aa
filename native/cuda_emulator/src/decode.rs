//! What an instruction does, by its name and its arguments.

use crate::arithmetic::{Type, comparison, conversion, extension, function, function_with_carry};
use crate::module::{
    Address, Compute, MOST_ELEMENTS, Module, Operand, Operation, Reduction, Shuffle, Space, Special, TileCopy,
};

/// An argument as it is written.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A register, a predicate or its opposite, or a number.
    Operand(Operand),
    /// `_`: a result that nobody wants.
    Nowhere,
    /// `{a, b}`
    Vector(Vec<Argument>),
    /// `a|p`: two results, the first of which may be one that nobody wants.
    Pair(Operand, Operand),
    /// `[a+8]`
    Address(Address),
    /// `[a, {b, c}]`
    Tile(Address, Vec<Operand>),
    /// `%tid.x`
    Special(Special),
}

/// What is wrong with an instruction.
type Reason = String;

/// How instructions may go on behind their names, beside types and comparisons, and how many arguments they have. Whatever is
/// not here would be read as something else.
const FORMS: &[(&str, &[&str], usize)] = &[
    ("mov", &[], 2),
    ("cvta", &["to", "global", "local", "param"], 2),
    ("cvt", &["rn", "rni", "rzi", "rmi", "rpi"], 2),
    ("setp", &[], 3),
    ("selp", &[], 4),
    ("add", &["rn", "cc"], 3),
    ("addc", &["cc"], 3),
    ("sub", &["rn", "cc"], 3),
    ("subc", &["cc"], 3),
    ("mul", &["rn", "lo", "hi", "wide"], 3),
    ("mad", &["lo", "hi", "wide", "cc"], 4),
    ("madc", &["lo", "hi", "cc"], 4),
    ("fma", &["rn"], 4),
    ("div", &["rn"], 3),
    ("rem", &[], 3),
    ("rcp", &["rn", "approx", "ftz"], 2),
    ("ex2", &["approx", "ftz"], 2),
    ("min", &[], 3),
    ("max", &[], 3),
    ("abs", &[], 2),
    ("neg", &[], 2),
    ("and", &[], 3),
    ("or", &[], 3),
    ("xor", &[], 3),
    ("not", &[], 2),
    ("shl", &[], 3),
    ("shr", &[], 3),
    ("shf", &["l", "wrap"], 4),
    ("bfe", &[], 4),
    ("bfi", &[], 5),
    ("clz", &[], 2),
    ("ld", &["global", "shared", "local", "param", "nc", "cs", "acquire", "gpu", "v2", "v4", "v8"], 2),
    ("st", &["global", "shared", "local", "param", "cs", "release", "gpu", "v2", "v4", "v8"], 2),
    ("atom", &["global", "shared", "add", "min", "max"], 3),
    ("red", &["global", "shared", "add", "min", "max", "v2"], 2),
    ("prefetch", &["global", "L2"], 1),
    ("griddepcontrol", &["wait", "launch_dependents"], 0),
    ("shfl", &["sync", "up", "down", "bfly", "idx"], 5),
    ("vote", &["sync", "all", "any", "ballot"], 3),
    ("redux", &["sync", "or"], 3),
    ("elect", &["sync"], 2),
    ("bar", &["sync"], 1),
    ("bar", &["warp", "sync"], 1),
    ("bar", &["red", "and", "or"], 3),
    ("mbarrier", &["init", "shared", "cta"], 2),
    ("mbarrier", &["arrive", "shared", "cta"], 2),
    ("mbarrier", &["arrive", "expect_tx", "shared", "cta"], 3),
    ("mbarrier", &["try_wait", "parity", "shared", "cta"], 3),
    ("fence", &["proxy", "async", "shared", "cta"], 0),
    ("cp", &["async", "bulk", "commit_group"], 0),
    ("cp", &["async", "bulk", "wait_group", "read"], 1),
    (
        "cp",
        &[
            "async",
            "bulk",
            "tensor",
            "3d",
            "4d",
            "shared",
            "cluster",
            "global",
            "tile",
            "mbarrier",
            "complete_tx",
            "bytes",
        ],
        3,
    ),
    ("cp", &["async", "bulk", "tensor", "3d", "4d", "global", "shared", "cta", "tile", "bulk_group"], 2),
    (
        "cp",
        &[
            "reduce",
            "async",
            "bulk",
            "tensor",
            "3d",
            "4d",
            "global",
            "shared",
            "cta",
            "add",
            "tile",
            "bulk_group",
        ],
        2,
    ),
    ("ret", &[], 0),
];

/// What follows the name of a comparison.
const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan",
];

/// An instruction in its parts.
struct Parts<'a> {
    name: &'a str,
    modifiers: Vec<&'a str>,
    of: Option<Type>,
    arguments: &'a [Argument],
}

/// The operation of an instruction of a module that neither branches nor calls.
pub fn decode(module: &mut Module, instruction: &str, arguments: &[Argument]) -> Result<Operation, Reason> {
    let mut words = instruction.split('.').filter(|word| !word.is_empty());
    let name = words.next().unwrap_or("");
    let modifiers: Vec<&str> = words.collect();
    let is_known = |(known, allowed, count): &(&str, &[&str], usize)| {
        let fits = |modifier: &&str| {
            Type::named(modifier).is_some()
                || allowed.contains(modifier)
                || name == "setp" && COMPARISONS.contains(modifier)
        };
        name == *known && arguments.len() == *count && modifiers.iter().all(fits)
    };
    if !FORMS.iter().any(is_known) {
        return Err("it is not known here".to_owned());
    }
    let of = modifiers.iter().find_map(|modifier| Type::named(modifier));
    let parts = Parts { name, modifiers, of, arguments };
    match name {
        "prefetch" | "griddepcontrol" | "fence" => Ok(Operation::Nothing),
        "ret" => Ok(Operation::Return),
        "ld" | "st" | "atom" | "red" => parts.access(),
        "shfl" | "vote" | "redux" | "elect" | "bar" => parts.meeting(),
        "mbarrier" => parts.barrier(),
        "cp" => parts.copy(),
        "mov" => parts.movement(module),
        _ => parts.computation(module),
    }
}

impl Parts<'_> {
    fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    fn of(&self) -> Result<Type, Reason> {
        self.of.ok_or("it has no type".to_owned())
    }

    /// What is read.
    fn read(&self, at: usize) -> Result<Operand, Reason> {
        match self.arguments.get(at) {
            None => Ok(Operand::Constant(0)),
            Some(Argument::Operand(operand)) => Ok(*operand),
            Some(other) => Err(format!("{other:?} is no number")),
        }
    }

    /// The register that is written.
    fn written(&self, at: usize) -> Result<u32, Reason> {
        match self.arguments.get(at) {
            Some(Argument::Operand(Operand::Register(register))) => Ok(*register),
            other => Err(format!("{other:?} is no register")),
        }
    }

    /// An address, in the memory that the instruction names. Parameters of functions lie in local memory, as their names say.
    fn address(&self, at: usize) -> Result<Address, Reason> {
        let Some(Argument::Address(address)) = self.arguments.get(at) else {
            return Err(format!("{:?} is no address", self.arguments.get(at)));
        };
        let spaces = [("global", Space::Global), ("shared", Space::Shared), ("local", Space::Local)];
        match spaces.into_iter().find(|(name, _)| self.has(name)) {
            Some((_, space)) => Ok(Address { space, ..*address }),
            None if self.has("param") => Ok(*address),
            None => Err("addresses of any memory are not known here".to_owned()),
        }
    }

    /// One number, or those of a vector.
    fn values(&self, at: usize) -> Result<Vec<Operand>, Reason> {
        let operand = |argument: &Argument| match argument {
            Argument::Operand(operand) => Ok(*operand),
            other => Err(format!("{other:?} is no number")),
        };
        match self.arguments.get(at) {
            Some(Argument::Vector(all)) if all.len() <= MOST_ELEMENTS => all.iter().map(operand).collect(),
            Some(one) => Ok(vec![operand(one)?]),
            None => Err("a number is missing".to_owned()),
        }
    }

    fn access(&self) -> Result<Operation, Reason> {
        let bytes = self.of()?.bytes();
        Ok(match self.name {
            "ld" => {
                let register = |operand| match operand {
                    Operand::Register(register) => Ok(register),
                    other => Err(format!("{other:?} is no register")),
                };
                Operation::Load {
                    address: self.address(1)?,
                    to: self.values(0)?.into_iter().map(register).collect::<Result<_, _>>()?,
                    bytes,
                    extend: extension(self.of()?),
                    acquires: self.has("acquire"),
                }
            }
            "st" => Operation::Store { address: self.address(0)?, from: self.values(1)?, bytes },
            name => {
                let result = usize::from(name == "atom");
                let of = self.of()?;
                let combine = self.modifiers.iter().find_map(|modifier| function(modifier, &[], of));
                Operation::Atomic {
                    address: self.address(result)?,
                    to: if result == 1 { Some(self.written(0)?) } else { None },
                    from: self.values(result + 1)?,
                    bytes,
                    combine: combine.ok_or("it is not known here")?,
                }
            }
        })
    }

    fn meeting(&self) -> Result<Operation, Reason> {
        let reduction = self.modifiers.iter().find_map(|&modifier| match modifier {
            "all" | "and" => Some(Reduction::All),
            "or" if self.name == "redux" => Some(Reduction::Or),
            "any" | "or" => Some(Reduction::Any),
            "ballot" => Some(Reduction::Ballot),
            _ => None,
        });
        // Barriers beside the first are for parts of a block.
        let is_first = |at| match self.read(at)? {
            Operand::Constant(0) => Ok(()),
            _ => Err("barriers beside the first are not known here".to_owned()),
        };
        Ok(match self.name {
            "shfl" => {
                let shuffle = self.modifiers.iter().find_map(|&modifier| match modifier {
                    "up" => Some(Shuffle::Up),
                    "down" => Some(Shuffle::Down),
                    "bfly" => Some(Shuffle::Bfly),
                    "idx" => Some(Shuffle::Idx),
                    _ => None,
                });
                let (to, is_valid) = match self.arguments.first() {
                    Some(Argument::Pair(Operand::Register(to), Operand::Register(valid))) => {
                        (*to, Some(*valid))
                    }
                    _ => (self.written(0)?, None),
                };
                Operation::Shuffle {
                    shuffle: shuffle.ok_or("it is not known here")?,
                    to,
                    is_valid,
                    from: self.read(1)?,
                    by: self.read(2)?,
                    limits: self.read(3)?,
                    members: self.read(4)?,
                }
            }
            "vote" | "redux" => Operation::Vote {
                reduction: reduction.ok_or("it is not known here")?,
                to: self.written(0)?,
                from: self.read(1)?,
                members: self.read(2)?,
            },
            "elect" => match self.arguments.first() {
                Some(Argument::Pair(_, Operand::Register(to))) => Operation::Vote {
                    reduction: Reduction::Lowest,
                    to: *to,
                    from: Operand::Constant(1),
                    members: self.read(1)?,
                },
                other => return Err(format!("{other:?} says of no lane that it is elected")),
            },
            _ if self.has("warp") => Operation::WarpBarrier { members: self.read(0)? },
            _ if self.has("red") => {
                is_first(1)?;
                let reduction = reduction.ok_or("it is not known here")?;
                Operation::BlockBarrier { reduction: Some((reduction, self.written(0)?, self.read(2)?)) }
            }
            _ => {
                is_first(0)?;
                Operation::BlockBarrier { reduction: None }
            }
        })
    }

    fn barrier(&self) -> Result<Operation, Reason> {
        Ok(match self.modifiers[0] {
            "init" => Operation::BeginBarrier { barrier: self.address(0)?, threads: self.read(1)? },
            "arrive" => Operation::Arrive { barrier: self.address(1)?, bytes: self.read(2)? },
            _ => Operation::HasPassed {
                to: self.written(0)?,
                barrier: self.address(1)?,
                parity: self.read(2)?,
            },
        })
    }

    fn copy(&self) -> Result<Operation, Reason> {
        if !self.has("tensor") {
            return Ok(Operation::Nothing);
        }
        let in_shared = |at: usize| match self.arguments.get(at) {
            Some(Argument::Address(address)) => Ok(Address { space: Space::Shared, ..*address }),
            other => Err(format!("{other:?} is no address")),
        };
        let brings = self.has("mbarrier");
        let (tile, shared) = if brings { (1, 0) } else { (0, 1) };
        let Some(Argument::Tile(map, coordinates)) = self.arguments.get(tile) else {
            return Err(format!("{:?} is no box of a tensor", self.arguments.get(tile)));
        };
        Ok(Operation::CopyTile {
            shared: in_shared(shared)?,
            map: Address { space: Space::Parameters, ..*map },
            coordinates: coordinates.clone(),
            copy: match brings {
                true => TileCopy::Bring(in_shared(2)?),
                false if self.has("reduce") => TileCopy::Add,
                false => TileCopy::TakeAway,
            },
        })
    }

    /// `mov`, which also takes registers apart and puts them together.
    fn movement(&self, module: &mut Module) -> Result<Operation, Reason> {
        match self.arguments {
            [Argument::Vector(to), _] => {
                let place = |to: &Argument| match to {
                    Argument::Operand(Operand::Register(register)) => Ok(Some(*register)),
                    Argument::Nowhere => Ok(None),
                    other => Err(format!("{other:?} is no register")),
                };
                let bits = self.of()?.bits() / to.len() as u32;
                let to = to.iter().map(place).collect::<Result<_, _>>()?;
                Ok(Operation::Unpack { to, from: self.read(1)?, bits })
            }
            [_, Argument::Vector(from)] => {
                let bits = self.of()?.bits() / from.len() as u32;
                Ok(Operation::Pack { to: self.written(0)?, from: self.values(1)?, bits })
            }
            [_, Argument::Special(special)] => {
                Ok(Operation::Special { special: *special, to: self.written(0)? })
            }
            _ => self.computation(module),
        }
    }

    fn computation(&self, module: &mut Module) -> Result<Operation, Reason> {
        let (of, to) = (self.of()?, self.written(0)?);
        let from = [self.read(1)?, self.read(2)?, self.read(3)?, self.read(4)?];
        if ["addc", "subc", "madc"].contains(&self.name) || self.has("cc") {
            let compute =
                function_with_carry(self.name, &self.modifiers, of).ok_or("it is not known here")?;
            return Ok(Operation::ComputeWithCarry { compute, to, from, keeps: self.has("cc") });
        }
        let compute: Option<Compute> = match (self.name, &self.modifiers[..]) {
            // Those that are combined with another predicate have more parts.
            ("setp", [order, _]) => comparison(order, of),
            ("setp", _) => None,
            ("cvt", [.., last]) => Type::named(last).and_then(|from| conversion(&self.modifiers, of, from)),
            (name, modifiers) => function(name, modifiers, of),
        };
        let compute = compute.ok_or("it is not known here")?;
        let mut registers = [0; 4];
        for (register, operand) in registers.iter_mut().zip(from) {
            *register = match operand {
                Operand::Register(register) => register,
                Operand::Constant(value) => module.constant(value),
                Operand::Not(_) => return Err("it computes with the opposite of a predicate".to_owned()),
            };
        }
        Ok(Operation::Compute { compute, to, from: registers })
    }
}

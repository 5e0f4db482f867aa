//! Global memory: what was allocated in this process, at its own addresses.

use std::collections::BTreeMap;
use std::sync::RwLock;

/// Where a region lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// Of the device.
    Device,
    /// Of the host, pinned.
    Host,
    /// A module's variable, which kernels only read.
    Variable,
}

#[derive(Debug, Clone, Copy)]
struct Region {
    bytes: usize,
    home: Home,
}

/// Regions by where they begin.
static REGIONS: RwLock<BTreeMap<usize, Region>> = RwLock::new(BTreeMap::new());

/// Makes a region known.
pub fn add(start: usize, bytes: usize, home: Home) {
    let mut regions = REGIONS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    regions.insert(start, Region { bytes, home });
}

/// Forgets a region; its length, if there was one with this home.
pub fn remove(start: usize, home: Home) -> Option<usize> {
    let mut regions = REGIONS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    regions.get(&start).filter(|region| region.home == home)?;
    regions.remove(&start).map(|region| region.bytes)
}

/// Bytes of all regions of the device.
pub fn device_bytes() -> usize {
    let regions = REGIONS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    regions.values().filter(|region| region.home == Home::Device).map(|region| region.bytes).sum()
}

/// The region that so many bytes lie in: where it begins and ends, and its home.
pub fn region(address: usize, bytes: usize) -> Option<(usize, usize, Home)> {
    let regions = REGIONS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (&start, region) = regions.range(..=address).next_back()?;
    let end = start + region.bytes;
    address.checked_add(bytes).filter(|&last| last <= end).map(|_| (start, end, region.home))
}

/// What a warp has last found of global memory, so that it need not look for the same region again.
#[derive(Debug, Default)]
pub struct Global {
    start: usize,
    end: usize,
    is_writable: bool,
}

impl Global {
    /// The address as a pointer to be read from, if so many bytes lie there in one region.
    pub fn source(&mut self, address: u64, bytes: usize) -> Result<*const u8, String> {
        self.look_up(address as usize, bytes)?;
        Ok(std::ptr::with_exposed_provenance(address as usize))
    }

    /// The address as a pointer to be written to, if so many bytes lie there in one region.
    pub fn target(&mut self, address: u64, bytes: usize) -> Result<*mut u8, String> {
        self.look_up(address as usize, bytes)?;
        match self.is_writable {
            true => Ok(std::ptr::with_exposed_provenance_mut(address as usize)),
            false => Err(format!("{bytes} bytes of global memory at {address:#x}, which can only be read")),
        }
    }

    fn look_up(&mut self, address: usize, bytes: usize) -> Result<(), String> {
        if !address.is_multiple_of(bytes) {
            return Err(format!(
                "{bytes} bytes of global memory at {address:#x}, which is no multiple of them"
            ));
        }
        let is_within = |end: usize| address.checked_add(bytes).is_some_and(|last| last <= end);
        if address < self.start || !is_within(self.end) {
            let none = || format!("{bytes} bytes of global memory at {address:#x}, where none are allocated");
            let (start, end, home) = region(address, bytes).ok_or_else(none)?;
            *self = Self { start, end, is_writable: home != Home::Variable };
        }
        Ok(())
    }
}

//! Devices: found once, held for the life of the process.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::num::NonZero;
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{Builder, available_parallelism};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    CUdevice_attribute, CUfunction, CUfunction_attribute, CUmodule, cuDriverGetVersion,
};

use super::buffers::{Pools, lock};
use super::compile::{Configuration, distinct};
use super::context::{Context, Entered};
use super::driver::{During, guarded, initialize, unavailable, words};
use super::images::Images;
use super::launch::{Kernel, Wanted};
use super::policy::Properties;
use super::tensor_maps::makes_tensor_maps;
use crate::Error;

/// A CUDA device as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process.
    pub ordinal: usize,
    /// The vendor's name.
    pub name: String,
    /// Memory of the device.
    pub memory_bytes: usize,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
}

/// A kernel is remembered by what it was compiled for and its name.
type KernelKey = (Configuration, &'static CStr);

/// From this version on, the driver also captures launches into graphs that begin before the last has ended: 12.3.
const CAPTURES_EARLY_LAUNCHES: c_int = 12030;

/// A device with its primary context, its compiled kernels and its pools of memory.
pub struct Device {
    info: DeviceInfo,
    properties: Properties,
    context: Context,
    driver: c_int,
    images: Images,
    modules: Mutex<HashMap<Configuration, Arc<Mutex<Option<CUmodule>>>>>,
    kernels: RwLock<HashMap<KernelKey, Kernel>>,
    pub(super) pools: Pools,
}

// SAFETY: modules and functions are handles that the driver lets every thread use that has entered their context, as each call does.
unsafe impl Send for Device {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("info", &self.info).finish_non_exhaustive()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.info.ordinal)
    }
}

/// The devices of this machine.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    of_each(|(info, _)| info)
}

/// What the choice of layouts depends on, for each device of this machine. No context is made.
pub fn properties() -> Result<Vec<Properties>, Error> {
    of_each(|(_, properties)| properties)
}

fn of_each<T>(part: impl Fn((DeviceInfo, Properties)) -> T) -> Result<Vec<T>, Error> {
    guarded(|| {
        initialize()?;
        let count =
            result::device::get_count().map_err(|error| unavailable(words(error), "check nvidia-smi"))?;
        (0..count as usize).map(|ordinal| describe(ordinal).map(&part)).collect()
    })
}

/// The device of this number. Its context is made at the first call and kept.
pub fn device(ordinal: usize) -> Result<&'static Device, Error> {
    static DEVICES: Mutex<Vec<Option<&'static Device>>> = Mutex::new(Vec::new());
    static OPENING: Mutex<()> = Mutex::new(());
    let opened = || lock(&DEVICES).get(ordinal).copied().flatten();
    if let Some(device) = opened() {
        return Ok(device);
    }
    // A context takes its time. Calls on other devices go on meanwhile.
    let _turn = lock(&OPENING);
    if let Some(device) = opened() {
        return Ok(device);
    }
    let device: &'static Device = Box::leak(Box::new(guarded(|| Device::open(ordinal))?));
    let mut held = lock(&DEVICES);
    if held.len() <= ordinal {
        held.resize(ordinal + 1, None);
    }
    held[ordinal] = Some(device);
    Ok(device)
}

/// What the driver says of a device.
fn describe(ordinal: usize) -> Result<(DeviceInfo, Properties), Error> {
    let refused = |error| unavailable(words(error), "check nvidia-smi, or use the cpu backend");
    let count = result::device::get_count().map_err(refused)?;
    if ordinal >= count as usize {
        return Err(unavailable(
            format!("there is no cuda:{ordinal}, only {count} device(s)"),
            "choose another device, or check CUDA_VISIBLE_DEVICES",
        ));
    }
    let device = result::device::get(ordinal as i32).map_err(refused)?;
    use CUdevice_attribute::*;
    // SAFETY: the device is one that the driver just handed out.
    let attribute = |name| unsafe { result::device::get_attribute(device, name) }.map_err(refused);
    let major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
    let shared = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
    let shared_in_all = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)? as usize;
    let cache = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize;
    let info = DeviceInfo {
        ordinal,
        name: result::device::get_name(device).map_err(refused)?,
        // SAFETY: the device is one that the driver just handed out.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(refused)?,
        compute_capability: (major, minor),
        multiprocessors,
    };
    let properties = Properties {
        architecture: 10 * major + minor,
        multiprocessors,
        shared_per_block: shared,
        shared_per_multiprocessor: shared_in_all,
        cache_bytes: cache,
        tensor_maps: major >= 9 && makes_tensor_maps(),
    };
    Ok((info, properties))
}

impl Device {
    fn open(ordinal: usize) -> Result<Self, Error> {
        initialize()?;
        let (info, properties) = describe(ordinal)?;
        let refused =
            |error| unavailable(words(error), "check that the device is free, or use the cpu backend");
        let device = result::device::get(ordinal as i32).map_err(refused)?;
        let mut driver = 0;
        // SAFETY: the pointer is to a live variable.
        unsafe { cuDriverGetVersion(&mut driver) }.result().map_err(refused)?;
        // The last that may fail: who holds a context gives a device.
        // SAFETY: the device is one that the driver just handed out; the context is kept for the process's life.
        let context = unsafe { result::primary_ctx::retain(device) }.map(Context).map_err(refused)?;
        Ok(Self {
            pools: Pools::new(ordinal, context),
            images: Images::new(properties.architecture, driver),
            info,
            properties,
            context,
            driver,
            modules: Mutex::default(),
            kernels: RwLock::default(),
        })
    }

    /// What users are told of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What the choice of layouts depends on.
    pub fn properties(&self) -> Properties {
        self.properties
    }

    /// Makes the device's context current in this thread for as long as what it gives lives.
    pub(super) fn enter(&self) -> Result<Entered, Error> {
        self.context.enter().during(|| format!("making {self} current"))
    }

    /// A kernel, compiled and loaded at its first use.
    pub(super) fn kernel(&self, wanted: Wanted) -> Result<Kernel, Error> {
        let Wanted { configuration, name } = wanted;
        let key = (configuration, name);
        let known = self.kernels.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(&kernel) = known.get(&key) {
            return Ok(kernel);
        }
        drop(known);
        let module = self.module(&configuration)?;
        let doing = || format!("loading {} on {self}", name.to_string_lossy());
        let name = name.to_owned();
        // SAFETY: modules are never unloaded.
        let function = unsafe { result::module::get_function(module, name) }.during(doing)?;
        let kernel = self.kernel_of(function, &configuration).during(doing)?;
        let mut known = self.kernels.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.insert(key, kernel);
        Ok(kernel)
    }

    /// What is to be known of a kernel to launch it. A launch may ask for all the shared memory that there is.
    fn kernel_of(&self, function: CUfunction, configuration: &Configuration) -> Result<Kernel, DriverError> {
        use CUfunction_attribute as Of;
        use result::function::{get_function_attribute, set_function_attribute};
        use result::occupancy::max_active_block_per_multiprocessor;
        let (threads, shared_bytes) = (configuration.threads() as i32, configuration.shared_bytes);
        // SAFETY: the function belongs to a module of this device, and modules are never unloaded.
        let (resident, local_bytes, compiled_for) = unsafe {
            if shared_bytes > 0 {
                let fixed = get_function_attribute(function, Of::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
                let most = self.properties().shared_per_block as i32 - fixed;
                set_function_attribute(function, Of::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)?;
            }
            let resident = max_active_block_per_multiprocessor(function, threads, shared_bytes)?;
            let local_bytes = get_function_attribute(function, Of::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
            (resident, local_bytes, get_function_attribute(function, Of::CU_FUNC_ATTRIBUTE_PTX_VERSION)?)
        };
        // PTX for older devices does not know how to wait.
        let waits = compiled_for >= 90 && self.driver >= CAPTURES_EARLY_LAUNCHES;
        Ok(Kernel {
            function,
            configuration: *configuration,
            resident: resident as usize,
            local_bytes: local_bytes as usize,
            waits,
        })
    }

    /// A loaded module. Threads that ask for the same wait for the first; others compile beside it.
    fn module(&self, configuration: &Configuration) -> Result<CUmodule, Error> {
        let place = lock(&self.modules).entry(*configuration).or_default().clone();
        let mut held = lock(&place);
        match *held {
            Some(module) => Ok(module),
            None => Ok(*held.insert(guarded(|| self.load(configuration))?)),
        }
    }

    /// Loads modules that are not there, side by side: what is to be compiled is compiled on several cores. By threads of
    /// its own: calls of others wait for those of the pool.
    pub(super) fn load_new(&self, configurations: impl Iterator<Item = Configuration>) -> Result<(), Error> {
        let known = lock(&self.modules);
        // What another thread is loading is waited for where it is wanted; what has failed is tried again.
        let is_there =
            |place: &Arc<Mutex<Option<CUmodule>>>| place.try_lock().map_or(true, |module| module.is_some());
        let new =
            distinct(configurations.filter(|configuration| !known.get(configuration).is_some_and(is_there)));
        drop(known);
        // The ordinary case.
        if new.is_empty() {
            return Ok(());
        }
        // More threads than processors would take turns, and the longest kernel, which is wanted first, would be the last to be there.
        let helpers = available_parallelism().map_or(1, NonZero::get).min(new.len()) - 1;
        let queue = Mutex::new(new.iter());
        let next = || lock(&queue).next();
        let load = || {
            let _current = self.enter()?;
            std::iter::from_fn(next).try_for_each(|configuration| self.module(configuration).map(|_| ()))
        };
        std::thread::scope(|scope| {
            // What the system has no thread for is left to the others, and to this one.
            let start = |_| Builder::new().spawn_scoped(scope, load).ok();
            let started: Vec<_> = (0..helpers).map_while(start).collect();
            let own = load();
            let ends = started.into_iter().map(|thread| thread.join());
            ends.map(|end| end.unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))).fold(own, Result::and)
        })
    }

    fn load(&self, configuration: &Configuration) -> Result<CUmodule, Error> {
        self.images.load(configuration, |image| {
            // SAFETY: the image is what NVRTC made, machine code, or PTX with its terminating zero: just now, or some time ago, as the
            // hash that the disk's cache has of it says, or packed, where the zero is looked for.
            unsafe { result::module::load_data(image.as_ptr().cast()) }
                .during(|| format!("loading a compiled kernel on {self}"))
        })
    }
}

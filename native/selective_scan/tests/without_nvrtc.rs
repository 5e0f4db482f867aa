//! Where NVRTC is not there, kernels come from the disk or from the pack. A process of its own, because NVRTC is hidden
//! from all of it. That packed kernels also run is for a GPU to show: tests/gpu/compilation.rs.

#[path = "gpu/shapes.rs"]
mod shapes;
mod support;

use std::path::{Path, PathBuf};

use selective_scan::Error;
use selective_scan::cuda::compile::Configuration;
use selective_scan::cuda::images::Images;
use selective_scan::cuda::nvrtc::Compiler;
use selective_scan::cuda::packed::{pack, target, unpack, use_packed_kernels};
use selective_scan::cuda::{Pass, configurations};
use shapes::{block, problem};
use support::devices::device;
use support::nvrtc::compiler;
use support::packing::compress;

/// The version of a driver that is older than what packed kernels are as fast by.
const DRIVER: i32 = 12000;

fn bytes(images: &Images, kernel: &Configuration) -> Result<Vec<u8>, Error> {
    images.load(kernel, |image| Ok(image.to_vec()))
}

fn reason(error: Error) -> String {
    match error {
        Error::Unavailable { backend: "cuda", reason, remedy } => {
            assert!(!remedy.is_empty());
            reason
        }
        other => panic!("{other:?}"),
    }
}

fn only_file(folder: &Path) -> PathBuf {
    std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn kernels_come_from_the_disk_or_from_the_pack() {
    let folder = std::env::temp_dir().join(format!("exphil_native_pack_{}", std::process::id()));
    let (cache, file) = (folder.join("cache"), folder.join("kernels.pack"));
    std::fs::create_dir_all(&folder).unwrap();
    let (one, other) = (folder.join("one"), folder.join("other"));
    let kernel = |problem| configurations(&device(90), &problem, Pass::Forward)[0];
    let (packed, cached) = (kernel(problem(32, 60, 512, 16)), kernel(block(32, 60, 512, 16)));

    // What is on disk was compiled in better days.
    let compiled = match compiler() {
        Some(compiler) => {
            let images = Images::at(90, DRIVER, Some(cache.clone()), None);
            let text = compiler.compile(&packed, target(90)).unwrap();
            assert!(text.starts_with(b"//") && text.ends_with(b"\0"), "PTX with its terminating zero");
            pack(&file, &[(packed, target(90), text.clone())], compress).unwrap();
            // Each in a folder of its own, under its name.
            for (place, kernel) in [(&one, &cached), (&other, &packed)] {
                bytes(&Images::at(90, DRIVER, Some(place.clone()), None), kernel).unwrap();
            }
            Some((bytes(&images, &cached).unwrap(), text))
        }
        None => {
            // What is to be packed is made up.
            pack(&file, &[(packed, target(90), b"text\0".to_vec())], compress).unwrap();
            None
        }
    };
    // SAFETY: this is the only test of its process, and no other thread reads the environment.
    unsafe { std::env::set_var("EXPHIL_NVRTC", "none") };
    assert!(reason(Compiler::find().unwrap_err()).contains("EXPHIL_NVRTC=none"));

    let images = Images::at(90, DRIVER, Some(cache.clone()), Some(file.clone()));
    let text = bytes(&images, &packed).unwrap();
    match compiled {
        Some((image, expected)) => {
            assert!(bytes(&images, &cached).unwrap() == image, "from the disk");
            assert!(text == expected, "from the pack");
            // What has another kernel's name is none.
            bytes(&Images::at(90, DRIVER, Some(one.clone()), None), &cached).unwrap();
            std::fs::copy(only_file(&one), only_file(&other)).unwrap();
            bytes(&Images::at(90, DRIVER, Some(other.clone()), None), &packed).unwrap_err();
        }
        None => assert_eq!(text, b"text\0"),
    }

    // The pack was second best: where NVRTC is there another day, it will be asked.
    let images = Images::at(90, DRIVER, Some(cache.clone()), None);
    bytes(&images, &packed).unwrap_err();

    // Neither here nor there: the reason has both, and what to do.
    let images = Images::at(90, DRIVER, None, Some(file.clone()));
    let words = reason(bytes(&images, &cached).unwrap_err());
    assert!(
        words.contains("EXPHIL_NVRTC=none") && words.contains("has no kernel for this problem"),
        "{words}"
    );
    let words = reason(bytes(&Images::at(90, DRIVER, None, None), &packed).unwrap_err());
    assert!(words.contains("no packed kernels are there"), "{words}");

    // A variable that is empty names nothing.
    let home = folder.join("home");
    use_packed_kernels(&file);
    for (name, value) in
        [("EXPHIL_KERNELS", Path::new("")), ("XDG_CACHE_HOME", Path::new("")), ("HOME", &home)]
    {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, value) };
    }
    assert!(bytes(&Images::new(90, 13000), &packed).unwrap() == text);
    assert!(only_file(&home.join(".cache/exphil_native")).is_file());

    // A pack that is torn has no kernels.
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 7, 15, 40, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        assert!(unpack(&file, &packed, 90).is_none(), "{length} bytes of {}", whole.len());
    }
    // In the first bytes of the file, in how many kernels there are, in the length of a text, in what is compressed, and in its checksum.
    let length = 16 + 32 + 3 * 8;
    for byte in [0, 14, length, whole.len() - 6, whole.len() - 1] {
        let mut other = whole.clone();
        other[byte] ^= 1;
        std::fs::write(&file, &other).unwrap();
        assert!(unpack(&file, &packed, 90).is_none(), "byte {byte} of {}", whole.len());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

//! Tells the linker what a library that lives inside the BEAM needs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        // Purging the Elixir module unloads its library. Worker threads and device contexts of ours outlive that,
        // and would go on in code that is no longer mapped: the library stays.
        Ok("linux") => println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete"),
        // The enif_* functions are found in the BEAM when it loads the library.
        Ok("macos") => println!("cargo:rustc-cdylib-link-arg=-Wl,-undefined,dynamic_lookup"),
        _ => {}
    }
}

//! Modules, functions, launches.
use super::codes::*;
use super::context::{Driver, Function, Module, driver, export, put};
use super::engine::{Op, Stream};
use super::graph;
use super::view::View;
use crate::ptx;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// Loads PTX text; anything else is no image for this device.
///
/// # Safety
/// `image` must be null or a C string.
unsafe fn load(out: *mut *mut c_void, image: *const c_void) -> Result<(), Code> {
    let driver = driver()?;
    let gpu = driver.current()?.gpu;
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's C string.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) }
        .to_str()
        .map_err(|_| INVALID_IMAGE)?;
    if !text.contains(".version") {
        return Err(INVALID_IMAGE);
    }
    match driver.world.scenario.driver.jit_error {
        0 => {}
        code => return Err(code),
    }
    if std::env::var("CUDA_DISABLE_PTX_JIT").is_ok_and(|v| v != "0" && !v.is_empty()) {
        return Err(JIT_DISABLED);
    }
    let code = ptx::Module::parse(text).map_err(|e| {
        eprintln!("simhost: PTX refused: {e}");
        INVALID_PTX
    })?;
    let handle = driver.modules.insert(Arc::new(Module { gpu, code }));
    // SAFETY: the caller's pointer.
    unsafe { put(out, handle as *mut c_void) }
}

export! {
    /// Loads a module into the current context.
    fn cuModuleLoadData(out: *mut *mut c_void, image: *const c_void) {
        // SAFETY: as the caller promises.
        unsafe { load(out, image) }
    }
    /// The same with JIT options, which are accepted; logs stay empty.
    fn cuModuleLoadDataEx(out: *mut *mut c_void, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void) {
        if count > 0 && (options.is_null() || values.is_null()) { return Err(INVALID_VALUE); }
        for i in 0..count as usize {
            // SAFETY: arrays of `count` elements; options 4 and 6 are sizes of log buffers, into which the driver writes
            // how much it filled.
            unsafe {
                if matches!(*options.add(i), 4 | 6) { values.add(i).write(std::ptr::null_mut()); }
                if matches!(*options.add(i), 3 | 5) {
                    let buffer = (*values.add(i)).cast::<u8>();
                    if !buffer.is_null() { buffer.write(0); }
                }
            }
        }
        // SAFETY: as the caller promises.
        unsafe { load(out, image) }
    }
    /// Unloads a module; its functions are gone with it.
    fn cuModuleUnload(module: *mut c_void) {
        let driver = driver()?;
        driver.current()?;
        let module = driver.modules.remove(module as usize)?;
        driver.functions.retain(|f| !Arc::ptr_eq(&f.module, &module));
        Ok(())
    }
    /// An entry by name.
    fn cuModuleGetFunction(out: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        let driver = driver()?;
        driver.current()?;
        if name.is_null() { return Err(INVALID_VALUE); }
        let module = driver.modules.get(module as usize)?;
        // SAFETY: the caller's C string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?.to_string();
        if module.code.entry(&name).is_none() { return Err(NOT_FOUND); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.functions.insert(Function { module, name }) as *mut c_void) }
    }
    /// One number about a function: 0 threads, 1 shared bytes, 3 local bytes, 4 registers, 5 PTX version, 6 binary version.
    fn cuFuncGetAttribute(value: *mut c_int, number: c_int, function: *mut c_void) {
        let driver = driver()?;
        let function = driver.functions.get(function as usize)?;
        let entry = function.module.code.entry(&function.name).ok_or(INVALID_HANDLE)?;
        let answer = match number {
            0 => entry.max_threads.unwrap_or(1024) as c_int,
            1 => entry.shared_bytes as c_int,
            4 => 32,
            5 => 70,
            6 => driver.world.scenario.gpu.compute_capability[0] * 10 + driver.world.scenario.gpu.compute_capability[1],
            3 => entry.local_bytes as c_int,
            2 | 7..=15 => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, answer) }
    }
    /// Blocks of a function that one multiprocessor holds: by shared memory (100 KiB), and so many that all of a device
    /// can wait for each other in the interpreter.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: *mut c_void, threads: c_int, shared: usize) {
        let driver = driver()?;
        let function = driver.functions.get(function as usize)?;
        let entry = function.module.code.entry(&function.name).ok_or(INVALID_HANDLE)?;
        if threads <= 0 || threads > 1024 { return Err(INVALID_VALUE); }
        let used = entry.shared_bytes + shared;
        let by_shared = (100_usize << 10).checked_div(used).map_or(u32::MAX, |n| n as u32);
        let together = ptx::resident_blocks(threads as u32) / driver.world.scenario.gpu.multiprocessors.max(1) as u32;
        // SAFETY: the caller's pointer.
        unsafe { put(blocks, together.min(by_shared).min(32) as c_int) }
    }
    /// Puts a kernel into a stream. Arguments are copied before the call returns.
    fn cuLaunchKernel(function: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: *mut c_void, arguments: *mut *mut c_void, extra: *mut *mut c_void) {
        let driver = driver()?;
        driver.current()?;
        let stream = driver.stream(stream as usize)?;
        let function = driver.functions.get(function as usize)?;
        if function.module.gpu != stream.gpu { return Err(INVALID_HANDLE); }
        let entry = function.module.code.entry(&function.name).ok_or(INVALID_HANDLE)?;
        let threads = u64::from(bx) * u64::from(by) * u64::from(bz);
        if !extra.is_null() { return Err(NOT_SUPPORTED); }
        if threads == 0 || gx == 0 || gy == 0 || gz == 0 { return Err(INVALID_VALUE); }
        if threads > 1024 || entry.max_threads.is_some_and(|most| threads > u64::from(most)) { return Err(LAUNCH_RESOURCES); }
        if gy > 65_535 || gz > 65_535 { return Err(INVALID_VALUE); }
        let mut params = vec![0_u8; entry.param_bytes];
        if !entry.params.is_empty() && arguments.is_null() { return Err(INVALID_VALUE); }
        for (i, p) in entry.params.iter().enumerate() {
            // SAFETY: the caller gives one pointer for each parameter, valid for its size.
            unsafe {
                let from = *arguments.add(i);
                if from.is_null() { return Err(INVALID_VALUE); }
                std::ptr::copy_nonoverlapping(from.cast::<u8>(), params[p.offset..].as_mut_ptr(), p.size);
            }
        }
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        let launch = Launch { function, grid, block, params, shared: shared as usize };
        graph::put(driver, &stream, Arc::new(move |driver, stream| Ok(launch.submit(driver, stream))))
    }
}

/// One launch, as often as it is submitted.
#[derive(Clone)]
struct Launch {
    function: Function,
    grid: [u32; 3],
    block: [u32; 3],
    params: Vec<u8>,
    shared: usize,
}

impl Launch {
    fn submit(&self, driver: &'static Driver, stream: &Arc<Stream>) -> Arc<Op> {
        let (it, gpu) = (self.clone(), stream.gpu);
        let snapshot = driver.memory.snapshot();
        let run = Box::new(move |op: &Arc<Op>| {
            let function = &it.function;
            let Some(entry) = function.module.code.entry(&function.name) else {
                return Err(INVALID_HANDLE);
            };
            let view = View::new(driver, driver.context_of(gpu), snapshot, Arc::clone(op));
            let launch = ptx::Launch {
                entry,
                grid: it.grid,
                block: it.block,
                params: &it.params,
                dynamic_shared: it.shared,
            };
            match ptx::run(&launch, &view) {
                Ok(stats) => Ok(Some(view.work(&stats))),
                Err(trap) => {
                    eprintln!("simhost: GPU {gpu}, kernel {}: {trap}", function.name);
                    Err(trap.cuda_error())
                }
            }
        });
        stream.submit(&driver.engine, driver.order(stream), None, true, run)
    }
}

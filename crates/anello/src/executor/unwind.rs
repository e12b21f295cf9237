//! Unwinding of a copied stack, with the unwind tables of the program and its libraries.
//!
//! Every address is checked before memory is read. A table that is wrong at some instruction, as in the functions that
//! unwind a panic, ends the backtrace, where unwinding the stack in place could end the process.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, Pointer, Register, RegisterRule,
    UnwindContext, UnwindSection,
};

/// Maximum number of frames of a backtrace.
const MAX_FRAMES: usize = 128;

/// The registers with DWARF numbers from 0, as far as unwinding needs them.
pub(super) type Registers = [u64; REGISTERS];

#[cfg(target_arch = "x86_64")]
mod machine {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP, REG_RBX,
        REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP, ucontext_t,
    };

    pub const REGISTERS: usize = 17;
    pub const STACK_POINTER: usize = 7;
    pub const RETURN_ADDRESS: usize = 16;

    /// Returns the registers of an interrupted thread, and the address of its current instruction.
    pub fn registers(context: &ucontext_t) -> ([u64; REGISTERS], u64) {
        const NUMBERS: [i32; REGISTERS] = [
            REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8, REG_R9, REG_R10,
            REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP,
        ];
        let registers = NUMBERS.map(|number| context.uc_mcontext.gregs[number as usize].cast_unsigned());
        (registers, registers[RETURN_ADDRESS])
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use libc::ucontext_t;

    pub const REGISTERS: usize = 32;
    pub const STACK_POINTER: usize = 31;
    pub const RETURN_ADDRESS: usize = 30;

    /// Returns the registers of an interrupted thread, and the address of its current instruction.
    pub fn registers(context: &ucontext_t) -> ([u64; REGISTERS], u64) {
        let mut registers = [context.uc_mcontext.sp; REGISTERS];
        registers[..STACK_POINTER].copy_from_slice(&context.uc_mcontext.regs);
        (registers, context.uc_mcontext.pc)
    }
}

pub(super) use machine::{REGISTERS, STACK_POINTER, registers};

/// The part of a stack that starts at `address`.
#[derive(Debug)]
pub(super) struct StackCopy<'a> {
    pub address: u64,
    pub words: &'a [AtomicU64],
}

impl StackCopy<'_> {
    fn read(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        let word = self.words.get(offset / size_of::<u64>())?;
        offset.is_multiple_of(size_of::<u64>()).then(|| word.load(Ordering::Relaxed))
    }
}

/// Returns an address in each function of a stack, innermost first: the current instruction, and the calls.
pub(super) fn unwind(registers: &Registers, instruction: u64, stack: &StackCopy<'_>) -> Vec<u64> {
    let modules = modules();
    let mut context = UnwindContext::new();
    let mut registers = *registers;
    let mut addresses = vec![instruction];
    while addresses.len() < MAX_FRAMES {
        let address = addresses[addresses.len() - 1];
        let module =
            modules.iter().find(|module| module.segments.iter().any(|segment| segment.contains(&address)));
        let caller = module.and_then(|module| module.caller(&mut context, address, &registers, stack));
        let Some(caller) = caller else { break };
        registers = caller;
        // The call precedes the return address.
        addresses.push(registers[machine::RETURN_ADDRESS].wrapping_sub(1));
    }
    addresses
}

/// The program or a library.
#[derive(Debug, Default)]
struct Module {
    segments: Vec<Range<u64>>,
    /// The binary search table of the section `.eh_frame`.
    table: Range<u64>,
}

impl Module {
    /// Returns the registers of the function that has called the one at `address`, or `None` if they are unknown.
    fn caller(
        &self,
        context: &mut UnwindContext<usize>,
        address: u64,
        registers: &Registers,
        stack: &StackCopy<'_>,
    ) -> Option<Registers> {
        let bases = BaseAddresses::default().set_eh_frame_hdr(self.table.start);
        let table = EhFrameHdr::new(self.bytes(self.table.clone())?, NativeEndian).parse(&bases, 8).ok()?;
        let Pointer::Direct(start) = table.eh_frame_ptr() else { return None };
        let end = self.segments.iter().find(|segment| segment.contains(&start))?.end;
        let section: EhFrame<EndianSlice<'_, NativeEndian>> =
            EhFrame::new(self.bytes(start..end)?, NativeEndian);
        let bases = bases.set_eh_frame(start);
        let rules = table.table()?;
        let rules = rules
            .unwind_info_for_address(&section, &bases, context, address, EhFrame::cie_from_offset)
            .ok()?;
        let CfaRule::RegisterAndOffset { register, offset } = rules.cfa() else { return None };
        let frame = registers.get(usize::from(register.0))?.wrapping_add_signed(*offset);
        let mut caller = *registers;
        for (number, value) in (0..).zip(&mut caller) {
            match rules.register(Register(number)) {
                RegisterRule::Undefined | RegisterRule::SameValue => {}
                RegisterRule::Offset(offset) => *value = stack.read(frame.wrapping_add_signed(offset))?,
                RegisterRule::ValOffset(offset) => *value = frame.wrapping_add_signed(offset),
                _ => return None,
            }
        }
        caller[STACK_POINTER] = frame;
        Some(caller)
    }

    /// Returns memory of the module, or `None` if it is not in one of its segments.
    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        let is_in = |segment: &&Range<u64>| segment.start <= range.start && range.end <= segment.end;
        self.segments.iter().find(is_in)?;
        let start = ptr::with_exposed_provenance(usize::try_from(range.start).ok()?);
        // SAFETY: the range is in a segment that the loader has mapped, of which the part with unwind tables is not
        // writable. The module stays loaded, because a thread is executing one of its functions.
        Some(unsafe { std::slice::from_raw_parts(start, usize::try_from(range.end - range.start).ok()?) })
    }
}

fn modules() -> Vec<Module> {
    let mut modules = Vec::<Module>::new();
    // SAFETY: the function is called with the pointer to the vector, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add_module), (&raw mut modules).cast()) };
    modules
}

/// # Safety
/// `info` must point to the description of a loaded module, and `modules` to a vector of [`Module`].
unsafe extern "C" fn add_module(info: *mut libc::dl_phdr_info, _: usize, modules: *mut c_void) -> c_int {
    // SAFETY: see above. The program headers are an array of this length.
    let (info, modules, headers) = unsafe {
        let headers = std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
        (&*info, &mut *modules.cast::<Vec<Module>>(), headers)
    };
    let mut module = Module::default();
    for header in headers {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        let range = start..start.saturating_add(header.p_filesz);
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_R != 0 => module.segments.push(range),
            libc::PT_GNU_EH_FRAME => module.table = range,
            _ => {}
        }
    }
    modules.push(module);
    0
}

// The extension module. The files of binding/ are the only ones that know both Python and C.
//
// These files have nanobind classes over the runtime's reference-counted objects, and the references to Python objects
// that queued work needs. The package has validated the arguments; they are checked again only where a wrong one would
// access foreign memory. They make no decisions.
#include "objects.h"

NB_MODULE(_native, m)
{
    nanobind::set_leak_warnings(false); // streams that the exit of the interpreter finds busy are left to the process
    m.doc() = "Native streams, plans and kernels. Private: arguments are validated by the package above.";
    ag_runtime_init();
    ag_on_idle = binding::on_idle;
    ag_drop_user = binding::drop_user;
    ag_at_fork(AG_FORK_BINDING, [] {
        binding::interpreter_forked();
        binding::keep_forked();
    });
    m.def("release_finished", binding::release_finished);
    binding::bind_interpreter(m);
    binding::bind_tables(m);
    binding::bind_roofline(m);
    binding::bind_types(m);
    binding::bind_objects(m);
    binding::bind_mapped_file(m);
    binding::bind_plan(m);
    binding::bind_operations(m);
    binding::bind_stream(m);
    binding::bind_waits(m);
    binding::bind_lineup(m);
    binding::bind_script(m);
    binding::bind_prepared(m);
    binding::bind_tensors(m);
    binding::bind_cuda(m);
    binding::bind_ggml(m);
}

// Waits of event loops, for Python: notifiers, and the callbacks that they call once a ticket is done.
#include "objects.h"

#include <cerrno>

namespace binding
{

void raise_no_descriptor()
{
    const int error = errno;
    const nb::object type = nb::module_::import_("aggml.errors").attr("TooManyFiles");
    const nb::tuple args = nb::make_tuple(error, "[Future] no file descriptor is left to wait with; the work goes on");
    PyErr_SetObject(type.ptr(), args.ptr());
    throw nb::python_error();
}

// Guards what notifiers and waits know of each other, where Python has no GIL to do it. A collector may cancel in any
// thread. Nobody calls Python with it held: what is dropped is dropped behind it.
static nb::ft_mutex waits_lock;

// Takes the wait out of its notifier's list; what the list kept is for the caller to drop.
static nb::object unlink(Waiter &w)
{
    if (w.notifier == nullptr) return {};
    *w.link = w.next;
    if (w.next != nullptr) w.next->link = w.link;
    w.notifier = nullptr;
    w.next = nullptr;
    w.link = nullptr;
    return nb::steal(w.self);
}

void Waiter::cancel()
{
    nb::object callback_, owner_, self_;
    nb::ft_lock_guard guard(waits_lock);
    ag_wait_cancel(&wait);
    callback_ = std::move(callback);
    owner_ = std::move(owner);
    self_ = unlink(*this);
}

void Notifier::cancel_all()
{
    nb::object gone;
    for (;;) {
        nb::object first;
        {
            nb::ft_lock_guard guard(waits_lock);
            if (current.is_valid()) gone = std::move(current);
            if (armed == nullptr) return;
            first = nb::borrow(armed->self);
        }
        nb::cast<Waiter &>(first).cancel();
    }
}

namespace
{

nb::object watch(Notifier &self, Op &op, nb::object callback)
{
    nb::object object = nb::cast(new Waiter, nb::rv_policy::take_ownership);
    Waiter &w = nb::cast<Waiter &>(object);
    nb::ft_lock_guard guard(waits_lock);
    if (!ag_wait_arm(&w.wait, op.stream, self.notifier, op.ticket)) return nb::none();
    w.self = object.ptr();
    w.owner = op.owner;
    w.callback = std::move(callback);
    w.turn = self.turn;
    w.notifier = &self;
    w.next = self.armed;
    w.link = &self.armed;
    if (w.next != nullptr) w.next->link = &w.next;
    self.armed = &w;
    object.inc_ref(); // the list's
    return object;
}

// Takes the next wait that is due, so that `current` is its callback, if there is none yet.
void take_due(Notifier &self)
{
    nb::object owner, kept;
    {
        nb::ft_lock_guard guard(waits_lock);
        if (self.current.is_valid()) return;
        ag_wait *taken = ag_notifier_take(self.notifier);
        if (taken == nullptr) return;
        Waiter &w = *reinterpret_cast<Waiter *>(taken); // its first member
        self.current = std::move(w.callback);
        self.current_turn = w.turn;
        owner = std::move(w.owner);
        kept = unlink(w);
    }
    Stream &stream = nb::cast<Stream &>(owner);
    stream.keeper->release(); // arrays go with the operation, not with the stream's next one
}

// The same again until `called`: an interrupt of Python may come between taking a callback and calling it.
//
// None for a wait that was armed in this turn, by a task that was resumed in it: its callback comes in the loop's next
// turn, for which the descriptor is signalled. Else the task would go on without a turn of the loop, in which it would
// have been cancelled and in which others run. It happens where the loop's thread has to wait for a core, or for the
// GIL, between the two. A wait that is cancelled until then is called all the same, as after an interrupt.
nb::object next_due(Notifier &self)
{
    take_due(self);
    nb::ft_lock_guard guard(waits_lock);
    if (!self.current.is_valid()) return nb::none();
    if (self.current_turn != self.turn) return self.current;
    ag_notifier_signal(self.notifier);
    return nb::none();
}

void called(Notifier &self)
{
    nb::object gone; // may run Python that comes back
    nb::ft_lock_guard guard(waits_lock);
    gone = std::move(self.current);
}

// Makes the callbacks that became due since `call_due`, in the same turn of the loop. An exception of one goes to
// `failed`, a function. An interrupt (Ctrl-C) goes on to the caller: the callback that it cut short comes again next
// time, and so do those behind it.
//
// One call for all of them: after each decoding step the weights have pushed Python's code and objects out of the
// caches, and the same loop in Python took 6 us of them, two functions and four calls.
void call_more_due(nb::object notifier, nb::object failed)
{
    Notifier &self = nb::cast<Notifier &>(notifier);
    for (;;) {
        nb::object callback = next_due(self);
        if (callback.is_none()) return;
        if (nb::steal(PyObject_CallNoArgs(callback.ptr())).is_valid()) {
            called(self);
            continue;
        }
        if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
        nb::python_error error;
        called(self); // first: `failed` may fail as well, and then this callback must not come again for ever
        failed(error.value());
    }
}

// Begins a turn of the loop, and makes all callbacks that are due.
void call_due(nb::object notifier, nb::object failed)
{
    {
        nb::ft_lock_guard guard(waits_lock);
        ++nb::cast<Notifier &>(notifier).turn;
    }
    call_more_due(std::move(notifier), std::move(failed));
}

nb::list waiters(Notifier &self)
{
    std::vector<nb::object> armed;
    {
        nb::ft_lock_guard guard(waits_lock);
        for (Waiter *w = self.armed; w != nullptr; w = w->next) armed.push_back(nb::borrow(w->self));
    }
    nb::list out;
    for (const nb::object &waiter : armed) out.append(waiter);
    return out;
}

// A loop that was closed while a task waits is a reference cycle: loop, descriptor's callback, notifier, wait, task,
// loop.
int traverse_notifier(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    Notifier *n = nb::inst_ptr<Notifier>(self);
    Py_VISIT(n->current.ptr());
    for (Waiter *w = n->armed; w != nullptr; w = w->next) Py_VISIT(w->self);
    return 0;
}

int clear_notifier(PyObject *self)
{
    if (nb::inst_ready(self)) nb::inst_ptr<Notifier>(self)->cancel_all();
    return 0;
}

int traverse_wait(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    Waiter *w = nb::inst_ptr<Waiter>(self);
    Py_VISIT(w->callback.ptr());
    Py_VISIT(w->owner.ptr());
    return 0;
}

int clear_wait(PyObject *self)
{
    if (nb::inst_ready(self)) nb::inst_ptr<Waiter>(self)->cancel();
    return 0;
}

// Ends the wait of a task of asyncio for `future`, and runs the task here and now. Nothing if the future is done.
//
// A result that is set is seen one turn of the loop later, after another poll of all descriptors. The reactor runs in a
// callback of the loop, when no task does, so it may call what the task has added to the future: from the end of 200 us
// of work to the resumed task 14.3 -> 10.3 us on a Zen 4. In C++ because an interrupt (Ctrl-C) comes between two
// bytecodes: here it cannot come between taking that callback and the first line of the task.
void resume(nb::object future)
{
    if (nb::cast<bool>(future.attr("done")())) return;
    const nb::object added = nb::getattr(future, "_callbacks", nb::none());
    const bool one = !added.is_none() && nb::len(added) == 1; // else somebody else looks at it, too, or nobody
    if (!one) {
        future.attr("set_result")(nb::none());
        return;
    }
    const nb::object entry = added[0], wakeup = entry[0], context = entry[1];
    future.attr("remove_done_callback")(wakeup);
    future.attr("set_result")(nb::none());
    context.attr("run")(wakeup, future);
}

PyType_Slot notifier_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(traverse_notifier)},
                                {Py_tp_clear, reinterpret_cast<void *>(clear_notifier)},
                                {0, nullptr}};
PyType_Slot wait_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(traverse_wait)},
                            {Py_tp_clear, reinterpret_cast<void *>(clear_wait)},
                            {0, nullptr}};

} // namespace

void bind_waits(nb::module_ &m)
{
    m.def("resume", resume, "future"_a);
    nb::class_<Waiter>(m, "Waiter", nb::type_slots(wait_slots))
        .def("cancel", &Waiter::cancel)
        .def_prop_ro("callback", [](Waiter &w) -> nb::object {
            nb::ft_lock_guard guard(waits_lock);
            return w.callback.is_valid() ? w.callback : nb::none();
        });
    nb::class_<Notifier>(m, "Notifier", nb::type_slots(notifier_slots))
        .def(nb::init<>())
        .def("fileno", [](Notifier &n) { return ag_notifier_fd(n.notifier); })
        .def("watch", watch, "op"_a, "callback"_a)
        .def("call_due", call_due, "failed"_a)
        .def("call_more_due", call_more_due, "failed"_a)
        .def("waiters", waiters)
        .def_prop_ro("waits",
                     [](Notifier &n) {
                         nb::ft_lock_guard guard(waits_lock);
                         return n.armed != nullptr || n.current.is_valid();
                     })
        .def("cancel_all", &Notifier::cancel_all)
        .def("signal", [](Notifier &n) { ag_notifier_signal(n.notifier); })
        .def("drain", [](Notifier &n) { ag_notifier_drain(n.notifier); })
        .def("close", [](Notifier &n) { ag_notifier_close(n.notifier); });
}

} // namespace binding

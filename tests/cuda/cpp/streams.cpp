// Streams, events and capture.
#include "copies.h"
#include "graphs.h"

using namespace stand_in;

namespace {

std::shared_ptr<Event> find_event(CUevent handle, CUresult& fault) {
    auto event = driver().events.find(handle);
    fault = event == nullptr ? driver().refuse(CUDA_ERROR_INVALID_HANDLE, "an event that does not exist (any more)")
                             : CUDA_SUCCESS;
    return event;
}

// A capture on this thread forbids queries and waits; a captured stream can be neither queried nor awaited.
CUresult forbidden(const char* function, Stream* stream) {
    if (stream != nullptr && stream->capture != nullptr) stream->capture->invalidated = true;
    else if (!driver().breaks_capture()) return CUDA_SUCCESS;
    return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, format("%s during a capture", function));
}

// Releases destroyed streams whose work is done.
void sweep(Context& context) {
    auto& streams = context.streams;
    for (size_t i = 0; i < streams.size();) {
        if (streams[i]->destroyed && streams[i]->items.empty() && !streams[i]->running) {
            streams.erase(streams.begin() + long(i));
        } else {
            ++i;
        }
    }
}

}  // namespace

EXPORT CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
    ENTRY(context);
    if (flags > CU_STREAM_NON_BLOCKING) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuStreamCreate: flags");
    sweep(*current);
    auto stream = std::make_shared<Stream>();
    stream->context = current;
    current->streams.push_back(stream);
    driver().streams.add(std::move(stream), handle);
    return CUDA_SUCCESS;
}

// "The resources will be released automatically once the device has completed all work."
EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    stream->destroyed = true;
    if (stream->capture != nullptr) stream->capture->ended = true;
    stream->capture = nullptr;
    driver().streams.remove(handle);
    Context& it = *stream->context;
    stream = nullptr;
    sweep(it);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    if ((fault = forbidden(__func__, stream.get()))) return fault;
    return driver().wait(entry.lock, *stream->context, stream.get(),
                         [&] { return stream->items.empty() && !stream->running; });
}

// Each query makes some progress, so that a loop of queries terminates.
EXPORT CUresult cuStreamQuery(CUstream handle) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    if ((fault = forbidden(__func__, stream.get()))) return fault;
    if (stream->items.empty()) return CUDA_SUCCESS;
    driver().nudge(entry.lock);
    return stream->context->error != CUDA_SUCCESS ? stream->context->error : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    auto event = find_event(event_handle, fault);
    if (event == nullptr) return fault;
    if (flags != 0) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuStreamWaitEvent: flags");
    if (event->capture != nullptr) {
        // A point of the same capture has already been passed.
        if (event->capture == stream->capture) return CUDA_SUCCESS;
        return driver().refuse(CUDA_ERROR_NOT_SUPPORTED, "a capture of several streams, which is not stood in for");
    }
    if (stream->capture != nullptr) {
        stream->capture->invalidated = true;
        return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a captured stream waits for what is not captured");
    }
    // "If cuEventRecord has not been called on the event, the call does nothing."
    if (event->mark == nullptr) return CUDA_SUCCESS;
    return driver().enqueue(*stream, {{}, {}, event->mark, {}});
}

EXPORT CUresult cuEventCreate(CUevent* handle, unsigned flags) {
    ENTRY(context);
    if (flags > 7) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuEventCreate: flags");
    auto event = std::make_shared<Event>();
    event->context = current;
    event->flags = flags;
    driver().events.add(std::move(event), handle);
    return CUDA_SUCCESS;
}

// "An event may be destroyed before it is complete"; its waiters keep waiting.
EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    ENTRY(context);
    CUresult fault;
    if (find_event(handle, fault) == nullptr) return fault;
    driver().events.remove(handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTRY(context);
    CUresult fault;
    auto event = find_event(handle, fault);
    if (event == nullptr) return fault;
    auto stream = find_stream(stream_handle, fault);
    if (stream == nullptr) return fault;
    event->capture = stream->capture;
    event->asked = false;
    event->mark = nullptr;
    if (stream->capture != nullptr) return CUDA_SUCCESS;
    event->mark = std::make_shared<Mark>();
    return driver().enqueue(*stream, {{}, event->mark, {}, {}});
}

// The first query after a record finds no progress; each later one makes some.
EXPORT CUresult cuEventQuery(CUevent handle) {
    ENTRY(context);
    CUresult fault;
    auto event = find_event(handle, fault);
    if (event == nullptr) return fault;
    if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    if ((fault = forbidden(__func__, nullptr))) return fault;
    if (event->mark == nullptr || event->mark->done) return CUDA_SUCCESS;
    if (event->asked) driver().nudge(entry.lock);
    event->asked = true;
    return event->context->error != CUDA_SUCCESS ? event->context->error : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
    ENTRY(context);
    CUresult fault;
    auto event = find_event(handle, fault);
    if (event == nullptr) return fault;
    if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    if ((fault = forbidden(__func__, nullptr))) return fault;
    auto mark = event->mark;
    if (mark == nullptr || mark->done) return CUDA_SUCCESS;
    Stream* stream = driver().stream_of(mark.get());
    return driver().wait(entry.lock, *event->context, stream, [&] { return mark->done; });
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
    ENTRY(context);
    CUresult fault;
    auto start = find_event(start_handle, fault);
    if (start == nullptr) return fault;
    auto end = find_event(end_handle, fault);
    if (end == nullptr) return fault;
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) || start->mark == nullptr || end->mark == nullptr)
        return driver().refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventElapsedTime of events without a time");
    if (!start->mark->done || !end->mark->done) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(end->mark->at - start->mark->at).count();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    if (stream->capture != nullptr || mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuStreamBeginCapture: a mode, or a stream that is captured");
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->graph = std::make_shared<Graph>();
    capture->graph->context = stream->context;
    driver().captures.push_back(capture);
    stream->capture = std::move(capture);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    *graph = nullptr;
    auto capture = stream->capture;
    if (capture == nullptr) return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "no capture to end");
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
        return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "a capture ended by another thread");
    stream->capture = nullptr;
    capture->ended = true;
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    driver().graphs.add(capture->graph, graph);
    return CUDA_SUCCESS;
}

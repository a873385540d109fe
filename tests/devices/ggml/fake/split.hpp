// Split buffers of the fake backend: the rows of each tensor are divided between its devices.
//
// As in CUDA and SYCL, memory is allocated when a tensor is placed, for this tensor alone: a second tensor at the same
// place gets other memory. A part of fake.cpp.

struct Shares {
    float of_first = 0.5f; // the share of the first device
    std::string name;
};

struct Pieces {
    std::vector<char> of[N_DEVICES];
};

struct SplitBuffer {
    std::vector<std::unique_ptr<Pieces>> pieces;
};

const char *split_name(ggml_backend_buffer_type_t type)
{
    return static_cast<Shares *>(type->context)->name.c_str();
}

bool is_split(const ggml_tensor *tensor)
{
    return tensor->buffer != nullptr && tensor->buffer->buft->iface.get_name == split_name;
}

Pieces &pieces_of(const ggml_tensor *tensor)
{
    return *static_cast<Pieces *>(tensor->extra);
}

ggml_status split_init(ggml_backend_buffer_t buffer, ggml_tensor *tensor)
{
    GGML_ASSERT(tensor->view_src == nullptr);
    const Shares *shares = static_cast<Shares *>(buffer->buft->context);
    auto made = std::make_unique<Pieces>();
    int64_t rows = ggml_nrows(tensor), first = int64_t(float(rows) * shares->of_first);
    made->of[0].resize(size_t(first) * tensor->nb[1]);
    made->of[1].resize(size_t(rows - first) * tensor->nb[1]);
    tensor->extra = made.get();
    static_cast<SplitBuffer *>(buffer->context)->pieces.push_back(std::move(made));
    return GGML_STATUS_SUCCESS;
}

void split_set(ggml_backend_buffer_t, ggml_tensor *tensor, const void *data, size_t offset, size_t size)
{
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor) && "a split tensor is written whole");
    const char *from = static_cast<const char *>(data);
    for (std::vector<char> &piece : pieces_of(tensor).of) {
        if (!piece.empty()) memcpy(piece.data(), from, piece.size());
        from += piece.size();
    }
}

void split_get(ggml_backend_buffer_t, const ggml_tensor *tensor, void *data, size_t offset, size_t size)
{
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor) && "a split tensor is read whole");
    char *to = static_cast<char *>(data);
    for (const std::vector<char> &piece : pieces_of(tensor).of) {
        if (!piece.empty()) memcpy(to, piece.data(), piece.size());
        to += piece.size();
    }
}

void *split_base(ggml_backend_buffer_t)
{
    return reinterpret_cast<void *>(0x1000); // not a real address, as in CUDA's split buffers
}

void split_free(ggml_backend_buffer_t buffer)
{
    delete static_cast<SplitBuffer *>(buffer->context);
}

void split_clear(ggml_backend_buffer_t, uint8_t)
{
}

ggml_backend_buffer_t split_alloc(ggml_backend_buffer_type_t type, size_t size)
{
    static const ggml_backend_buffer_i interface = {split_free, split_base,  split_init, nullptr,
                                                    split_set,  split_get,   nullptr,    nullptr,
                                                    nullptr,    split_clear, nullptr};
    return ggml_backend_buffer_init(type, interface, new SplitBuffer, size);
}

size_t split_size(ggml_backend_buffer_type_t, const ggml_tensor *tensor)
{
    return ggml_nbytes(tensor) + 512; // each piece is padded
}

ggml_backend_buffer_type_t split_type(int main_device, const float *shares)
{
    static std::map<std::pair<int, float>, ggml_backend_buffer_type> types;
    static std::mutex lock;
    std::lock_guard<std::mutex> guard(lock);
    float sum = shares[0] + shares[1], first = sum > 0 ? shares[0] / sum : 0.5f;
    auto at = types.find({main_device, first});
    if (at == types.end()) {
        Shares *made = new Shares{first, "Fake_Split_" + std::to_string(types.size())};
        ggml_backend_buffer_type_i interface = {split_name,     split_alloc, alignment,
                                                largest_buffer, split_size,  nullptr};
        at = types.insert({{main_device, first}, {interface, device_at(size_t(main_device)), made}}).first;
    }
    return &at->second;
}

// The weights of a product, put together while it is computed.
class Gathered
{
  public:
    explicit Gathered(ggml_tensor *product) : node(product), weights(product->src[0])
    {
        if (node->op != GGML_OP_MUL_MAT || !is_split(weights)) return;
        rows.resize(ggml_nbytes(weights));
        split_get(weights->buffer, weights, rows.data(), 0, rows.size());
        near = *weights;
        near.data = rows.data();
        near.extra = nullptr;
        node->src[0] = &near;
    }

    ~Gathered()
    {
        node->src[0] = weights;
    }

  private:
    ggml_tensor *node, *weights;
    ggml_tensor near = {};
    std::vector<char> rows;
};

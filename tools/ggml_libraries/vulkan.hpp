// Settings of layers, which ggml-vulkan needs and the Vulkan headers of Debian 12 (1.3.239) do not have.
//
// If the headers are older than 1.3.272, this file is included before every file of ggml-vulkan. The layouts are
// those of VK_EXT_layer_settings; a loader that does not know the structure skips it.
#pragma once
#include <vulkan/vulkan_core.h> // vulkan.hpp comes later, under macros of ggml-vulkan

#if VK_HEADER_VERSION < 272
#include <cstdint>
#include <vector>

namespace vk
{

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char *layer;
    const char *name;
    LayerSettingTypeEXT type;
    uint32_t count;
    const void *values;
};

struct LayerSettingsCreateInfoEXT {
    int type = 1000496000; // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void *next = nullptr;
    uint32_t count;
    const LayerSettingEXT *settings;
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> &all)
        : count(static_cast<uint32_t>(all.size())), settings(all.data())
    {
    }
};

} // namespace vk
#endif

// Memory of a CUDA device for the backend of `device_backend.exs`, as three functions of the BEAM. It is never freed.
#include <dlfcn.h>
#include <erl_nif.h>

typedef int (*Driver)();
static Driver init, device_get, retain, set_current, mem_alloc, host_to_device, device_to_host;
static void *context;
static int call(int result) { return result == 0; }

// An emulated driver has the first name alone; a real one, without CUDA's files for development, the second.
static int load(ErlNifEnv *env, void **priv, ERL_NIF_TERM info) {
  void *cuda = dlopen("libcuda.so", RTLD_NOW);
  if (!cuda) cuda = dlopen("libcuda.so.1", RTLD_NOW);
  return !(cuda && (init = (Driver)dlsym(cuda, "cuInit")) && (device_get = (Driver)dlsym(cuda, "cuDeviceGet")) &&
           (retain = (Driver)dlsym(cuda, "cuDevicePrimaryCtxRetain")) &&
           (set_current = (Driver)dlsym(cuda, "cuCtxSetCurrent")) &&
           (mem_alloc = (Driver)dlsym(cuda, "cuMemAlloc_v2")) &&
           (host_to_device = (Driver)dlsym(cuda, "cuMemcpyHtoD_v2")) &&
           (device_to_host = (Driver)dlsym(cuda, "cuMemcpyDtoH_v2")));
}

static int begin(void) {
  int device;
  return call(init(0)) && call(device_get(&device, 0)) && (context || call(retain(&context, device))) &&
         call(set_current(context));
}

static ERL_NIF_TERM allocate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 bytes, address;
  if (!enif_get_uint64(env, argv[0], &bytes) || !begin() || !call(mem_alloc(&address, bytes)))
    return enif_make_badarg(env);
  return enif_make_uint64(env, address);
}

static ERL_NIF_TERM store(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 address;
  ErlNifBinary from;
  if (!enif_get_uint64(env, argv[0], &address) || !enif_inspect_binary(env, argv[1], &from) || !begin() ||
      !call(host_to_device(address, from.data, from.size)))
    return enif_make_badarg(env);
  return argv[0];
}

static ERL_NIF_TERM fetch(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 address, bytes;
  ERL_NIF_TERM result;
  if (!enif_get_uint64(env, argv[0], &address) || !enif_get_uint64(env, argv[1], &bytes) || !begin() ||
      !call(device_to_host(enif_make_new_binary(env, bytes, &result), address, bytes)))
    return enif_make_badarg(env);
  return result;
}

static ErlNifFunc functions[] = {{"allocate", 1, allocate}, {"store", 2, store}, {"fetch", 2, fetch}};

ERL_NIF_INIT(Elixir.ExPhil.Native.DeviceMemory, functions, load, NULL, NULL, NULL)
